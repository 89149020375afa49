"""How far above the oracle's perplexity a policy runs.

Source: method.md 7 and 9. The greedy oracle is not a bound, so a gap can be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cona.analysis.load import Curve, Run


@dataclass(frozen=True, kw_only=True)
class Gap:
    """ppl/ppl_oracle - 1 over a stretch of the train clock."""

    start_s: float
    """The later of both first evaluations after the learning rate's warm-up."""
    end_s: float
    """The earlier of both last evaluations."""
    largest: float
    """Maximum over time, as a fraction."""
    mean: float
    """Mean over time, as a fraction."""


@dataclass(frozen=True, kw_only=True)
class OracleGap:
    """A run against an oracle of the same model and seed."""

    run: Run
    oracle: Run
    gap: Gap | None
    """None: the curves do not overlap."""


def gap_between(curve: Curve, oracle: Curve, warmup_samples: float = 0.0) -> Gap | None:
    """Return the gap of a curve to the oracle's, exact for log perplexity linear in train_s.

    Args:
        curve: evaluations of a run.
        oracle: evaluations of the oracle.
        warmup_samples: samples of the warm-up, which is left out; so is the start at 0 samples.

    Returns:
        The gap; None if no stretch of time is common to both.
    """
    starts = [c.train_s[c.samples >= max(warmup_samples, 1)] for c in (curve, oracle)]
    if not all(s.size for s in starts):
        return None
    start = max(float(s[0]) for s in starts)
    end = min(float(c.train_s[-1]) for c in (curve, oracle))
    if end <= start:
        return None
    inside = np.union1d(curve.train_s, oracle.train_s)
    knots = np.union1d([start, end], inside[(inside > start) & (inside < end)])
    difference = curve.log_ppl_at(knots) - oracle.log_ppl_at(knots)
    return Gap(
        start_s=start,
        end_s=end,
        largest=float(np.expm1(difference.max())),
        mean=_mean_expm1(knots, difference),
    )


def _mean_expm1(times: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return the time mean of exp(v) - 1 for a piecewise linear v(t), in closed form."""
    width, rise = np.diff(times), np.diff(values)
    # mean of exp over a linear piece is exp(v0) * (e^rise - 1)/rise, which tends to exp(v0)
    safe = np.where(rise == 0, 1.0, rise)
    factor = np.where(rise == 0, 1.0, np.expm1(safe) / safe)
    pieces = np.exp(values[:-1]) * factor
    return float((pieces * width).sum() / width.sum() - 1)


def oracle_gaps(runs: Sequence[Run]) -> list[OracleGap]:
    """Return the gap of every run to every oracle (kind `bound`) of its model and seed."""
    oracles = [r for r in runs if r.kind == "bound"]
    return [
        OracleGap(
            run=run,
            oracle=oracle,
            gap=gap_between(run.curve, oracle.curve, float(run.result["warmup_samples"])),
        )
        for run in runs
        for oracle in oracles
        if (run.model, run.seed) == (oracle.model, oracle.seed) and run is not oracle
    ]
