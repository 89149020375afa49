"""How far above a reference perplexity a policy runs: each oracle's, and the best that is known.

No oracle here is a bound: a greedy one looks one interval ahead, so a gap to it can be negative.
The reference `BEST` is at every moment the lowest of all oracles and all fixed strategies, the
best of which only hindsight knows; nothing among them is below it.

Source: method.md 7 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cona.analysis.groups import fixed_gbs, is_oracle
from cona.analysis.load import Curve, Run

BEST = "best known"
"""The lowest of greedy and look-ahead oracles and of the fixed strategies, moment by moment."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """ppl/ppl_reference - 1 over a stretch of the train clock."""

    start_s: float
    """The later first evaluation after the learning rate's warm-up, of run and first reference."""
    end_s: float
    """The earliest last evaluation."""
    largest: float
    """Maximum over time, as a fraction."""
    mean: float
    """Mean over time, as a fraction."""


@dataclass(frozen=True, kw_only=True)
class OracleGap:
    """A run against a reference of the same model and seed."""

    run: Run
    reference: str
    """Policy of the oracle, or `BEST`."""
    gap: Gap | None
    """None: the curves do not overlap."""


def gap_between(curve: Curve, *references: Curve, warmup_samples: float = 0.0) -> Gap | None:
    """Return the gap of a curve to the lowest of others, exact for log perplexity linear in time.

    Args:
        curve: evaluations of a run.
        references: evaluations of one oracle or more.
        warmup_samples: samples of the warm-up, which is left out; so is the start at 0 samples.

    Returns:
        The gap; None if no stretch of time is common to all.
    """
    curves = (curve, *references)
    starts = [c.train_s[c.samples >= max(warmup_samples, 1)] for c in curves]
    if not all(s.size for s in starts):
        return None
    own, *others = (float(s[0]) for s in starts)
    start = max(own, min(others))  # a reference that is slower at first is above the lowest
    end = min(float(c.train_s[-1]) for c in curves)
    if end <= start:
        return None
    inside = np.unique(np.concatenate([c.train_s for c in curves]))
    knots = np.union1d([start, end], inside[(inside > start) & (inside < end)])
    knots = np.union1d(knots, _crossings(knots, [r.log_ppl_at(knots) for r in references]))
    lowest = np.min([r.log_ppl_at(knots) for r in references], axis=0)
    difference = curve.log_ppl_at(knots) - lowest
    return Gap(
        start_s=start,
        end_s=end,
        largest=float(np.expm1(difference.max())),
        mean=_mean_expm1(knots, difference),
    )


def _crossings(times: Floats, lines: Sequence[Floats]) -> Floats:
    """Return the times between knots at which two of some piecewise linear lines cross."""
    found = [np.empty(0)]
    for one, other in combinations(lines, 2):
        before, after = (one - other)[:-1], (one - other)[1:]
        crosses = before * after < 0
        share = before[crosses] / (before - after)[crosses]
        found.append(times[:-1][crosses] + share * np.diff(times)[crosses])
    return np.concatenate(found)


def _mean_expm1(times: Floats, values: Floats) -> float:
    """Return the time mean of exp(v) - 1 for a piecewise linear v(t), in closed form."""
    width, rise = np.diff(times), np.diff(values)
    # mean of exp over a linear piece is exp(v0) * (e^rise - 1)/rise, which tends to exp(v0)
    safe = np.where(rise == 0, 1.0, rise)
    factor = np.where(rise == 0, 1.0, np.expm1(safe) / safe)
    pieces = np.exp(values[:-1]) * factor
    return float((pieces * width).sum() / width.sum() - 1)


def oracle_gaps(runs: Sequence[Run]) -> list[OracleGap]:
    """Return the gap of every run to every oracle of its model and seed, and to the best known."""
    return [
        OracleGap(run=run, reference=name, gap=_gap(run, references))
        for run in runs
        for name, references in _references(run, runs)
    ]


def _references(run: Run, runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """The oracles that a run is compared with; a run without any oracle has no reference."""
    same = [r for r in runs if (r.model, r.seed) == (run.model, run.seed)]
    oracles = [r for r in same if is_oracle(r.policy)]
    for oracle in oracles:
        if oracle is not run:
            yield oracle.policy, [oracle]
    ended = [r for r in same if r.result["status"] != "diverged"]  # others end too early
    best = [r for r in ended if is_oracle(r.policy) or fixed_gbs(r.policy) is not None]
    if oracles and best:
        yield BEST, best


def _gap(run: Run, references: Sequence[Run]) -> Gap | None:
    curves = (reference.curve for reference in references)
    return gap_between(run.curve, *curves, warmup_samples=float(run.result["warmup_samples"]))
