"""The decision log of every run: what was weighed, and why it switched or stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cona.analysis.load import Record, Run
from cona.analysis.markdown import number
from cona.analysis.thresholds import finite
from cona.report.shapes import Table

MOST_ROWS = 6_000
"""Rows of all runs together, about 2 MB: the report is opened by a browser, not by a database."""
MOST_ROWS_OF_RUN = 60
_LEAST_ROWS_OF_RUN = 6
_NUMBERS = {"t_cur_s": "T_cur s", "t_next_s": "T_next s", "r": "R", "net_s": "net s"}
_COST = "cost_s"
_KNOWN = {"gns", "gns_low", "gns_high", _COST, "next", *_NUMBERS}
_HEAD = (
    *("samples", "action", "reason", "strategy", "next", "GNS [90 % interval]"),
    *(*_NUMBERS.values(), "cost s", "iteration", "other numbers"),
)
"""When, what and why come first: that much a phone shows without scrolling."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """The decisions of one run that are shown."""

    run: Run
    num_switches: int
    num_decisions: int
    table: Table
    """Only columns that hold something."""


def log(runs: Sequence[Run]) -> list[RunLog]:
    """Return the log of every run that decided anything, with as many rows as the report holds."""
    deciding = [run for run in runs if run.decisions]
    most = rows_per_run(len(deciding))
    return [_log(run, most) for run in deciding]


def rows_per_run(num_runs: int) -> int:
    """Return how many decisions of each run are shown, at most."""
    share = MOST_ROWS // max(num_runs, 1)
    return max(_LEAST_ROWS_OF_RUN, min(share, MOST_ROWS_OF_RUN))


def _log(run: Run, most: int) -> RunLog:
    rows = [_cells(decision) for decision in thinned(run.decisions, most)]
    used = [i for i in range(len(_HEAD)) if any(row[i] for row in rows)]
    return RunLog(
        run=run,
        num_switches=sum(d["action"] == "switch" for d in run.decisions),
        num_decisions=len(run.decisions),
        table=Table(
            head=tuple(_HEAD[i] for i in used),
            rows=tuple(tuple(row[i] for i in used) for row in rows),
        ),
    )


def thinned(decisions: Sequence[Record], most: int) -> list[Record]:
    """Return at most ``most`` decisions in their order: switches first, the rest evenly spaced."""
    switches = [i for i, d in enumerate(decisions) if d["action"] == "switch"]
    stays = [i for i, d in enumerate(decisions) if d["action"] != "switch"]
    kept = spread(switches, most)
    kept += spread(stays, most - len(kept))
    return [decisions[i] for i in sorted(kept)]


def spread(values: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    if most < 2:
        return list(values[: max(most, 0)])
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def _cells(decision: Record) -> tuple[str, ...]:
    details = decision["details"]
    return (
        f"{decision['samples']:,}",
        str(decision["action"]),
        str(decision["reason"]),
        str(decision["strategy"]),
        str(decision["next"] or ""),
        noise(details),
        *(_value(details.get(key)) for key in (*_NUMBERS, _COST)),
        f"{decision['iteration']:,}",
        ", ".join(f"{k} {_value(v)}" for k, v in details.items() if k not in _KNOWN and _value(v)),
    )


def noise(details: Record) -> str:
    """Return a gradient noise scale with its interval, in samples; empty without an estimate."""
    gns, low = finite(details.get("gns")), finite(details.get("gns_low"))
    if gns is None:
        return ""
    if low is None:
        return number(gns, 3)
    high = finite(details.get("gns_high"))
    return f"{number(gns, 3)} [{number(low, 3)}, {number(high, 3) if high else 'unbounded'}]"


def _value(value: object) -> str:
    """Return a number or a state such as `never` as text; empty for None."""
    as_number = finite(value)
    if as_number is not None:
        return number(as_number)
    return "" if value is None else str(value)
