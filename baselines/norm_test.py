"""Norm test: the batch grows when the gradient's variance is large beside its squared norm.

Lau et al. 2024 (arXiv 2412.21124). With Var_1 the variance of one sample's gradient, the test
Var_1/gbs <= eta^2*|g|^2 fails when the batch is too small; then it becomes the smallest that would
pass, gbs <- ceil(Var_1/(eta^2*|g|^2)).

- `batch`, as in the paper: |g|^2 is the batch gradient's, which has Var_1/gbs of its own in it; the
  test fails if and only if gbs < GNS*(1 - eta^2)/eta^2. Tested on every iteration by itself.
- `debiased`: |g|^2 is the unbiased estimate; the test fails if and only if gbs < GNS/eta^2.
  ASSUMED: on the smoothed terms, because one iteration's may be negative.

Left out: growth to sizes between the ladder's (ASSUMED: the next rung up, at most the largest).
The batch never shrinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cona.controller.narrow import best_at
from cona.errors import ConfigError
from cona.policy import Decision, Details, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy


@dataclass(kw_only=True)
class NormTest:
    """gbs <- ceil(Var_1/(eta^2*|g|^2)), rounded up to a rung, whenever the test fails."""

    name: ClassVar[str] = "norm-test"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = "gbs grows when the gradient's variance exceeds eta^2 of its norm"
    source: ClassVar[str] = "norm test (Lau et al. 2024, arXiv 2412.21124)"

    eta: float = 0.2
    """Bound on the relative error of the gradient. ASSUMED: the order of the paper's settings."""
    norm: Literal["batch", "debiased"] = "batch"
    """Which |g|^2: the batch gradient's, as in the paper, or the unbiased estimate."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.eta < 1:
            raise ConfigError(f"norm-test-eta{self.eta}: eta must lie between 0 and 1, e.g. eta0.2")

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        self._problem = problem
        return best_at(problem, problem.rungs[0])

    def decide(self, observation: Observation) -> Decision:
        """Return the fastest strategy of the batch that would pass the test, if it fails."""
        gbs = observation.strategy.gbs
        needed = self._needed_gbs(observation)
        if needed is None:
            return Decision(strategy=None, reason="no gradient terms", quiet=True)
        if needed <= gbs:
            return Decision(strategy=None, reason="the norm test passes", quiet=True)
        rungs = self._problem.rungs
        target = next((rung for rung in rungs if rung >= needed), rungs[-1])
        if target <= gbs:
            return Decision(strategy=None, reason="at the largest batch", quiet=True)
        strategy = best_at(self._problem, target)
        reason = f"the norm test wants a batch of {needed}"
        details: Details = {"needed_gbs": float(needed), "next": str(strategy)}
        return Decision(strategy=strategy, reason=reason, details=details)

    def _needed_gbs(self, seen: Observation) -> int | None:
        """Return the smallest batch that would pass, samples; None while it cannot be said."""
        if self.norm == "debiased":
            variance, norm_sq = seen.gns.tr_sigma, seen.gns.mu_sq
        elif seen.terms is None:
            return None
        else:
            variance = seen.terms.tr_sigma
            norm_sq = seen.terms.mu_sq + variance / seen.strategy.gbs
        bound = self.eta**2 * norm_sq
        wanted = variance / bound if bound > 0 else math.inf
        return max(1, math.ceil(wanted)) if math.isfinite(wanted) else None
