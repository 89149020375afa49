"""The noise scale against its thresholds, as a policy's decisions recorded them.

Source: method.md 3: above GNS* the next larger batch size makes more progress per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cona.analysis.load import Record, Run


@dataclass(frozen=True, kw_only=True)
class StageNoise:
    """GNS in one stage of a run against its threshold; all in samples."""

    strategy: str
    first_samples: int
    last_samples: int
    gns: tuple[float, float] | None
    """Smallest and largest estimate in the stage; None: no estimate."""
    last: Record
    """The last iteration with an estimate (gns, gns_low, gns_high); empty without one."""
    gns_star: tuple[float, float] | None
    """Smallest and largest crossing to the next larger batch size; None: there was none."""
    reason: str
    """Why the last decision of the stage stayed or switched; empty without a decision."""


def finite(value: object) -> float | None:
    """Return a finite number, None for anything else (a state such as `never`)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None  # type: ignore[arg-type]


def crossings(run: Run) -> list[tuple[int, float]]:
    """Return (samples, GNS*) of every decision; NaN, which is not drawn, without a crossing."""
    stars = ((d["samples"], finite(d["details"].get("gns_star"))) for d in run.decisions)
    return [(samples, math.nan if star is None else star) for samples, star in stars]


def stage_noise(run: Run) -> Iterator[StageNoise]:
    """Return GNS and its threshold for every stage of a run."""
    stages = run.result["stages"]
    starts = [int(s["samples"]) for s in stages]
    ends = [*starts[1:], int(run.result["samples"])]
    for stage, first, last in zip(stages, starts, ends, strict=True):
        decisions = [d for d in run.decisions if _in(d, first, last)]
        steps = [s for s in run.steps if _in(s, first, last) and finite(s["gns"]) is not None]
        stars = (finite(d["details"].get("gns_star")) for d in decisions)
        yield StageNoise(
            strategy=stage["strategy"],
            first_samples=first,
            last_samples=last,
            gns=_range([float(s["gns"]) for s in steps]),
            last=steps[-1] if steps else {},
            gns_star=_range([star for star in stars if star is not None]),
            reason=decisions[-1]["reason"] if decisions else "",
        )


def chain(run: Run) -> str:
    """Return the stages of a run as text, e.g. ``dp4-...-gbs8 → dp4-...-gbs16 @ 1,024``."""
    stages: Sequence[Record] = run.result["stages"]
    parts = [str(stages[0]["strategy"])] if stages else []
    parts += [f"{s['strategy']} @ {s['samples']:,}" for _, s in pairwise(stages)]
    return " → ".join(parts)


def _in(record: Record, first: int, last: int) -> bool:
    return first < int(record["samples"]) <= last


def _range(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None
