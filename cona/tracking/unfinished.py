"""Run directories without a result: still running, stopped, or failed?

Source: docs/results-format.md, events.jsonl; the owner of a directory is its lock's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cona import config, registry
from cona.analysis.load import Run
from cona.errors import ConfigError, RunError
from cona.lock import Lock
from cona.runlog import read_json, read_records
from cona.specs import ModelSpec
from cona.tracking.entry import Status

_STOPPED = ("Interrupted", "KeyboardInterrupt")
"""What ends a run that a signal stopped; anything else that ends one is a failure."""
VANISHED = "its process is gone without a word: killed, or its machine went down"


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A run that began and has no result."""

    run: Run
    """What its files say so far; of its result only what is known before the end."""
    status: Status
    reason: str
    """Why it is not finished, in words; empty while it runs."""


def unfinished_runs(results: Path, tier: str) -> Iterator[Unfinished]:
    """Yield the runs of a tier that began and have no result.

    Args:
        results: root of the results.
        tier: name of the tier.

    Raises:
        RunError: a file of a run is damaged.
    """
    for info in sorted((results / tier).glob("*/*/seed*/run.json")):
        if not info.with_name("result.json").exists():
            status, reason = _state(info.parent)
            yield Unfinished(run=_run(info.parent), status=status, reason=reason)


def _state(folder: Path) -> tuple[Status, str]:
    owner = Lock(folder).owner()
    if owner and owner[1]:
        return "RUNNING", ""
    events = read_records(folder / "events.jsonl")
    last: dict[str, Any] = events[-1] if events else {}
    if last.get("event") != "ended early":
        return "KILLED", VANISHED
    reason = f"{last.get('error')}: {last.get('message')}"
    return "KILLED" if last.get("error") in _STOPPED else "FAILED", reason


def _run(folder: Path) -> Run:
    info = read_json(folder / "run.json")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for line in read_records(folder / "metrics.jsonl"):
        kinds.setdefault(line["kind"], []).append(line)
    step, evaluation, decision, switch = (
        tuple(kinds.get(kind, ())) for kind in ("step", "eval", "decision", "switch")
    )
    try:
        result = _known_before_the_end(folder, info)
    except KeyError as error:
        raise RunError(
            f"{folder / 'run.json'}: has no {error}; delete the folder to run it again"
        ) from error
    return Run(
        path=folder,
        result=result,
        info=info,
        steps=step,
        evals=evaluation,
        decisions=decision,
        switches=switch,
    )


def _known_before_the_end(folder: Path, info: dict[str, Any]) -> dict[str, Any]:
    """Return those keys of result.json that run.json tells."""
    tier = info["tier"]
    model = config.validate(ModelSpec, info["model"], where=str(folder / "run.json"))
    clock = {"kind": tier["clock"]["kind"], "cluster": tier["cluster"]}
    if clock["kind"] == "modelled":
        clock |= {key: tier["clock"][key] for key in ("time_source", "switch_cost")}
    kind = {}
    with suppress(ConfigError):  # its policy may have been removed since
        kind = {"kind": registry.policy(info["policy"]).kind}
    return {
        **{key: info[key] for key in ("policy", "seed", "run_key", "config_hash")},
        **kind,
        "tier": tier["name"],
        "model": model.name,
        "perplexity_name": model.perplexity_name,
        "clock": clock,
    }


def signature(found: Unfinished) -> str:
    """Return what changes when the run goes on, or ends."""
    lines = [len(found.run.steps), len(found.run.evals), len(found.run.decisions)]
    last = json.dumps(found.run.steps[-1:])
    return config.content_hash(found.status, found.reason, lines, last)
