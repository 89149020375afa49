"""Time to perplexity (TTP) on a ladder of targets that is fixed before any result is known.

Source: method.md 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cona.analysis.groups import by_model, fixed_gbs
from cona.analysis.load import Curve, Run

RUNGS_PER_DECADE = 20
"""Targets are preferred numbers: 20 a decade (the R20 series), 12 % apart."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """When a run first met a target; seconds."""

    train_s: float
    """Train clock at the first evaluation at or below the target: the TTP."""
    interpolated_s: float
    """Where log perplexity, linear in time since the evaluation before, met the target."""
    wall_s: float
    """Train clock plus evaluation time at that evaluation."""
    recharged_s: dict[str, float]
    """The TTP of the same decisions with switches charged by each name that has seconds."""


@dataclass(frozen=True, kw_only=True)
class Ttp:
    """One row of the TTP table: a run and a target."""

    run: Run
    target: float
    crossing: Crossing | None
    """None: not reached."""

    @property
    def train_s(self) -> float | None:
        """The TTP in seconds; None: not reached."""
        return self.crossing.train_s if self.crossing else None


def rung(index: int) -> float:
    """Return a rung of the ladder, 10**(index/20) rounded to three significant digits."""
    return float(f"{10 ** (index / RUNGS_PER_DECADE):.3g}")


def targets_between(lowest: float, below: float) -> list[float]:
    """Return the rungs at or above ``lowest`` and strictly below ``below``, falling."""
    first = math.floor(math.log10(lowest) * RUNGS_PER_DECADE) - 1
    last = math.ceil(math.log10(below) * RUNGS_PER_DECADE) + 1
    rungs = (rung(i) for i in range(last, first - 1, -1))
    return [r for r in rungs if lowest <= r < below]


def label(target: float) -> str:
    """Return a target as text: three significant digits, no exponent."""
    return f"{target:g}"


def targets_of(runs: Sequence[Run]) -> list[float]:
    """Return one model's targets: from below every initial perplexity to the lowest reached.

    Args:
        runs: all runs of one model, so that every policy gets the same rows.

    Returns:
        Perplexities, falling (easy to hard); empty if no run ever improved.
    """
    curves = [r.curve for r in runs if r.curve.ppl.size]
    if not curves:
        return []
    initial = min(float(c.ppl[0]) for c in curves)
    return targets_between(min(float(c.ppl.min()) for c in curves), initial)


def first_crossing(curve: Curve, target: float) -> Crossing | None:
    """Return when a curve is first at or below a target, even if it rises again; None: never."""
    hits = (curve.ppl <= target).nonzero()[0]
    if not hits.size:
        return None
    at = int(hits[0])
    return Crossing(
        train_s=float(curve.train_s[at]),
        interpolated_s=_interpolate(curve, target, at),
        wall_s=float(curve.wall_s[at]),
        recharged_s={p: float(curve.recharged_s(p)[at]) for p in curve.switch_s},
    )


def _interpolate(curve: Curve, target: float, at: int) -> float:
    if at == 0:
        return float(curve.train_s[0])
    high, low = math.log(curve.ppl[at - 1]), math.log(curve.ppl[at])
    start, end = float(curve.train_s[at - 1]), float(curve.train_s[at])
    return start + (high - math.log(target)) / (high - low) * (end - start)


def ttp_rows(runs: Sequence[Run]) -> list[Ttp]:
    """Return the TTP of every run at every target of its model, hardest target last."""
    return [
        Ttp(run=run, target=target, crossing=first_crossing(run.curve, target))
        for group in by_model(runs).values()
        for target in targets_of(group)
        for run in group
    ]


def interpolated_rows(rows: Sequence[Ttp]) -> list[Ttp]:
    """Return the rows with the interpolated crossing as their TTP; re-charged times stay."""
    return [
        replace(row, crossing=at and replace(at, train_s=at.interpolated_s))
        for row in rows
        for at in [row.crossing]
    ]


def headline_target(rows: Sequence[Ttp]) -> float | None:
    """Return the lowest target that some `fixed-best` run reached at every seed.

    A rule, not a choice: the best fixed strategy in hindsight decides, so that the comparison with
    it has a ratio and a weak policy moves nothing. Without a `fixed-best` run any run decides.

    Args:
        rows: TTP rows of one model.

    Returns:
        The perplexity; None if there is no such target.
    """
    judges = [r for r in rows if fixed_gbs(r.run.policy) is not None] or rows
    seeds = {r.run.seed for r in judges}
    reached = {(r.target, r.run.seed) for r in judges if r.crossing}
    targets = {r.target for r in judges}
    return min((t for t in targets if all((t, s) in reached for s in seeds)), default=None)
