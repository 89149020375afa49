"""Whether a run on real ranks is the run of the single process, and by how much it differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cona.engine.base import StepStats
from cona.gns import gradient_terms
from cona.runlog import finite
from cona.selftest.cases import MBS, Case

QUANTITIES = ("loss", "tr_sigma", "mu_sq", "norm")
"""What is compared: the loss, both terms of the noise scale, the gradient norm."""

TOLERANCES = {
    "fp32": dict(zip(QUANTITIES, (1e-5, 1e-4, 1e-4, 1e-5), strict=True)),
    # ASSUMED: five to ten times what rounding was seen to cost against float32.
    "bf16": dict(zip(QUANTITIES, (5e-3, 5e-2, 5e-2, 2e-2), strict=True)),
    "fp16": dict(zip(QUANTITIES, (5e-4, 5e-3, 5e-3, 2e-3), strict=True)),
}
"""Largest relative differences that pass, by precision."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one case."""

    case: Case
    """What ran."""
    differences: dict[str, float] = field(default_factory=dict)
    """Largest relative difference of each quantity over the iterations; of a live run the loss."""
    note: str = ""
    """Why there are no differences, else empty."""

    @property
    def passed(self) -> bool:
        """Every difference is within its tolerance; NaN is not."""
        limits = TOLERANCES[self.case.precision]
        within = [value <= limits[name] for name, value in self.differences.items()]
        return bool(within) and all(within)

    def record(self) -> dict[str, Any]:
        """Return the verdict as JSON has it; a difference that is not finite is null."""
        return {
            "family": self.case.family,
            "precision": self.case.precision,
            "num_ranks": self.case.num_ranks,
            "layouts": [str(layout) for layout in self.case.layouts],
            "passed": self.passed,
            "differences": {name: finite(value) for name, value in self.differences.items()},
            "note": self.note,
        }


def judge(case: Case, stats: Sequence[StepStats], reference: Sequence[StepStats]) -> Verdict:
    """Compare a run with that of the single process.

    Args:
        case: which run.
        stats: its iterations.
        reference: at least as many iterations on the same batches.
    """
    if skipped := [str(step) for step, one in enumerate(stats) if one.skipped]:
        return Verdict(case=case, note=f"no finite gradient in iteration {', '.join(skipped)}")
    pairs = zip(map(_quantities, stats), map(_quantities, reference), strict=False)
    steps = [[_relative(*ours) for ours in zip(a, b, strict=True)] for a, b in pairs]
    largest = [_largest(column) for column in zip(*steps, strict=True)]
    found = dict(zip(QUANTITIES, largest, strict=True))
    # A live run's statistics are those of layouts that have been compared each for itself.
    return Verdict(case=case, differences={"loss": found["loss"]} if case.is_live else found)


def _quantities(stats: StepStats) -> tuple[float, ...]:
    """Return one iteration's quantities, NaN where the noise scale was not measured."""
    n = stats.num_microbatches
    terms = gradient_terms(stats.sum_sq_microbatch, stats.grad_norm, n, n * MBS)
    noise = (terms.tr_sigma, terms.mu_sq) if terms else (math.nan, math.nan)
    return (stats.loss_nats / stats.num_tokens, *noise, stats.grad_norm)


def _relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / abs(theirs) if theirs else math.nan


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)
