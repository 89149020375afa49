"""Batch-size warm-up by a measured critical batch size (CBS).

Merrill et al. 2025 (arXiv 2505.23971). From the current state, branches train the same samples at
k*gbs (k = 1, 2, 4) with sqrt(k) times the learning rate, as its rule, sqrt, says. The CBS is the
largest k*gbs whose loss is at most a tolerance above that of k = 1. Once it reaches twice the
batch, the batch doubles, and the rate grows by sqrt(2).

The paper measures the CBS on a run at hand and schedules the next one by it; here it is measured
in the run itself. Branches cost no time on the clock, and CONA gets none: so its kind is bound (on
what measuring the CBS could give), and tables say so. ASSUMED: how often, how long, how many, and
the loss (log perplexity on the probe set, after every branch saw the same number of samples).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from cona.controller.narrow import best_at
from cona.controller.patience import Patience
from cona.errors import ConfigError
from cona.policy import Decision, Details, Observation, Prober, Problem
from cona.runlog import finite
from cona.specs import LrRule
from cona.strategy import Strategy

MULTIPLES = (1, 2, 4)
"""k of the branches. ASSUMED: one more than the next doubling, to see how far the CBS is."""


@dataclass(kw_only=True)
class Merrill:
    """Doubles gbs once branches say that the critical batch is twice as large."""

    name: ClassVar[str] = "merrill"
    kind: ClassVar[str] = "bound"
    summary: ClassVar[str] = "gbs doubles when branches (free on the clock) show a larger CBS"
    source: ClassVar[str] = "batch-size warm-up (Merrill et al. 2025, arXiv 2505.23971)"

    tolerance: float = 0.01
    """Nats by which a branch's loss may be higher. ASSUMED: small beside a run's progress."""
    iterations: int = 4
    """Iterations of the branch with the largest batch; ASSUMED."""
    lr_rule: LrRule | None = "sqrt"
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _probe: Prober = field(init=False, repr=False)
    _patience: Patience = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"merrill-iterations{self.iterations}: must be at least 1")

    def attach(self, probe: Prober) -> None:
        """Give the policy its branches."""
        self._probe = probe

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        self._problem, self._patience = problem, Patience(problem)
        return best_at(problem, problem.rungs[0])

    def decide(self, observation: Observation) -> Decision:
        """Measure the CBS once in a while; return the next rung's fastest strategy if it grew."""
        if wait := self._patience.wait(observation):
            return wait
        gbs = observation.strategy.gbs
        if gbs == self._problem.rungs[-1]:
            return Decision(strategy=None, reason="at the largest batch", quiet=True)
        self._patience.begin(observation)
        losses = self._branches(gbs)
        critical = self._critical(losses, gbs)
        details: Details = {f"loss_gbs{size}": finite(loss) for size, loss in losses.items()}
        details["critical_gbs"] = float(critical)
        reason = f"the measured critical batch is {critical}"
        if critical < 2 * gbs:
            return Decision(strategy=None, reason=reason, details=details)
        strategy = best_at(self._problem, 2 * gbs)
        details["next"] = str(strategy)
        return Decision(strategy=strategy, reason=reason, details=details)

    def _critical(self, losses: dict[int, float], gbs: int) -> int:
        limit = losses[gbs] + self.tolerance
        within = [size for size, loss in losses.items() if loss <= limit and math.isfinite(loss)]
        return max(within, default=gbs)

    def _branches(self, gbs: int) -> dict[int, float]:
        """Return the log perplexity after each branch, by its batch size."""
        sizes = [k * gbs for k in MULTIPLES if k * gbs <= self._problem.rungs[-1]]
        num_samples = self.iterations * sizes[-1]
        strategies = {size: best_at(self._problem, size) for size in sizes}
        return {size: self._probe([(s, num_samples // size)]) for size, s in strategies.items()}
