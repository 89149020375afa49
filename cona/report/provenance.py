"""Who made the results: commit, versions, data, command, duration, and the key of every run."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import cona
from cona.analysis.groups import by_model, unique
from cona.analysis.load import Run
from cona.analysis.markdown import number
from cona.analysis.notes import clock_sentence, data_sentence
from cona.analysis.table_claims import command
from cona.report.shapes import Table
from cona.runlog import read_records
from cona.specs import TierSpec

_STARTS = ("started", "resumed")
_ENDS = ("finished", "ended early")
_HEAD = (
    *("model", "policy", "seed", "status", "run key", "config hash", "comparison key"),
    *("belief", "made", "wall s", "commit"),
)
_DIRTY = "`+dirty`: code or configuration differed from the commit"


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
        ("Commit", f"{_listed(info.get('commit') for info in infos)}; {_DIRTY}"),
        ("Versions", "; ".join(versions)),
        ("Machine", _listed(info.get("platform") for info in infos)),
        ("Clock", clock_sentence(runs).removeprefix("Clock: ")),
        ("Data", data_sentence(runs).removeprefix("Text: ")),
        ("Time budget", _budgets(runs)),
    ]


def run_table(runs: Sequence[Run]) -> Table:
    """Return one line for every run."""
    return Table(head=_HEAD, rows=tuple(_row(run) for run in runs))


def _row(run: Run) -> tuple[str, ...]:
    result, wall_s = run.result, wall_clock_s(run)
    keys = (str(result[key]) for key in ("run_key", "config_hash", "comparison_key", "belief"))
    made = str(run.info.get("created", "–")), "–" if wall_s is None else number(wall_s, 3)
    commit = str(run.info.get("commit", "–"))[:12]
    return run.model, run.policy, str(run.seed), str(result["status"]), *keys, *made, commit


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
