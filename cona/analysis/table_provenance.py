"""Provenance of a tier: commit, versions, data, command, duration, and the key of every run."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import cona
from cona.analysis.groups import by_model, unique
from cona.analysis.load import Run, load_runs
from cona.analysis.markdown import number, page, table
from cona.analysis.notes import clock_sentence, data_sentence
from cona.analysis.table_claims import command
from cona.runlog import read_records, write_atomic
from cona.specs import TierSpec

_STARTS = ("started", "resumed")
_ENDS = ("finished", "ended early")
COLUMNS = (
    *("model", "policy", "seed", "status", "run_key", "config_hash", "comparison_key"),
    *("belief", "created", "wall_clock_s", "commit"),
)
"""`wall_clock_s`: from the run's starts to its ends, empty if nobody noted them."""
_DIRTY = "+dirty"


def write_provenance(results: Path, tier: TierSpec) -> list[Path]:
    """Write the provenance of a tier under ``results/<tier>/tables/``, as CSV and Markdown.

    Args:
        results: root of the results.
        tier: whose runs they are.

    Returns:
        The files written: a line for every run, and what holds for all.

    Raises:
        RunError: there is no finished run, or the runs cannot be compared.
    """
    runs = load_runs(results, tier.name)
    folder = results / tier.name / "tables"
    csv, text = folder / "provenance.csv", folder / "provenance.md"
    write_atomic(csv, pd.DataFrame(records(runs), columns=list(COLUMNS)).to_csv(index=False))
    write_atomic(text, markdown(tier, runs))
    return [csv, text]


def markdown(tier: TierSpec, runs: Sequence[Run]) -> str:
    """Return what holds for all runs as a page."""
    return page(f"# Provenance: {tier.name}", table(("What", ""), facts(tier, runs)))


def facts(tier: TierSpec, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what holds for all runs: a name and a text with Markdown each."""
    infos = [run.info for run in runs]
    versions = unique(_versions(info) for info in infos)
    wall_s = sum(wall_clock_s(run) or 0.0 for run in runs)
    return [
        ("Command", command(tier)),
        ("Report", f"cona report --tier {tier.name}, cona {cona.__version__}"),
        ("Runs", f"{len(runs)} finished; {_span(infos)}"),
        ("Wall time", f"{_hours(wall_s)} of all runs together, as they were started and stopped"),
        ("Commit", _commits(infos)),
        ("Versions", "; ".join(versions)),
        ("Machine", _listed(info.get("platform") for info in infos)),
        ("Clock", clock_sentence(runs).removeprefix("Clock: ")),
        ("Data", data_sentence(runs).removeprefix("Text: ")),
        ("Time budget", _budgets(runs)),
    ]


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every run."""
    return [_record(run) for run in runs]


def _record(run: Run) -> dict[str, Any]:
    keys = ("status", "run_key", "config_hash", "comparison_key", "belief")
    return {
        "model": run.model,
        "policy": run.policy,
        "seed": run.seed,
        **{key: run.result[key] for key in keys},
        "created": run.info.get("created"),
        "wall_clock_s": wall_clock_s(run),
        "commit": run.info.get("commit"),
    }


def wall_clock_s(run: Run) -> float | None:
    """Return the wall-clock seconds of a run, over all its starts; None if nobody noted them.

    A start that was killed without a word counts nothing.

    Raises:
        RunError: a line of events.jsonl is damaged.
    """
    total_s, since, is_known = 0.0, None, False
    for event in read_records(run.path / "events.jsonl"):
        if event["event"] in _STARTS:
            since = _moment(event)
        elif event["event"] in _ENDS and since is not None:
            total_s += (_moment(event) - since).total_seconds()
            since, is_known = None, True
    return total_s if is_known else None


def _moment(event: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(event["time"])


def _versions(info: dict[str, Any]) -> str:
    named = {"cona": info.get("cona"), "python": info.get("python"), **info.get("versions", {})}
    return ", ".join(f"{name} {v}" for name, v in named.items() if v) or "not recorded"


def _commits(infos: Sequence[dict[str, Any]]) -> str:
    text = _listed(info.get("commit") for info in infos)
    is_dirty = _DIRTY in text
    return text + f"; `{_DIRTY}`: code or configuration differed from the commit" * is_dirty


def _span(infos: Sequence[dict[str, Any]]) -> str:
    made = sorted(str(info["created"]) for info in infos if info.get("created"))
    return f"the first was begun {made[0]}, the last {made[-1]}" if made else "when: not recorded"


def _budgets(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{model} {number(group[0].budget_s)} s ({group[0].clock['unit']})"
        for model, group in by_model(runs).items()
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(unique(str(value) for value in values if value)) or "not recorded"
