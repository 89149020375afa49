"""Batch-size ramp-up by consumed samples, as GPT-3 was trained and Megatron offers it.

gbs = min(max, start + incr * floor(consumed / (ramp / ((max - start)/incr)))) after
`--rampup-batch-size start incr ramp` of Megatron-LM; GPT-3 (Brown et al. 2020, arXiv 2005.14165)
ramped linearly over the first 4-12 of its 300 billion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cona.controller.narrow import best_at, with_layout
from cona.lr import LearningRate
from cona.policy import STAY, Decision, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy


@dataclass(kw_only=True)
class Rampup:
    """Linear growth of gbs from gbs_min to gbs_max in steps of gbs_min."""

    name: ClassVar[str] = "rampup"
    kind: ClassVar[str] = "schedule"
    summary: ClassVar[str] = "gbs grows linearly with consumed samples, best layout at each size"
    source: ClassVar[str] = "GPT-3 (Brown et al. 2020), Megatron-LM --rampup-batch-size"

    ramp: float = 0.04
    """Length of the ramp as a fraction of the learning-rate decay: 12 of 300 billion tokens."""
    layout: Literal["best", "fixed"] = "best"
    """The fastest at each size, or the fastest at the smallest for the whole run."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _ramp_samples: float = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        self._problem = problem
        if self.layout == "fixed":
            smallest = problem.tier.ladder.gbs_min
            self._problem = with_layout(problem, best_at(problem, smallest).layout)
        horizon = LearningRate(problem.tier.learning_rate, problem.trained_model)
        self._ramp_samples = self.ramp * horizon.decay_tokens / horizon.seq_length
        return best_at(self._problem, self.gbs_at(0))

    def gbs_at(self, samples: int) -> int:
        """Return the global batch size after ``samples`` consumed samples."""
        ladder = self._problem.tier.ladder
        start, largest, incr = ladder.gbs_min, ladder.gbs_max, ladder.gbs_min
        if largest == start:
            return start
        step_samples = self._ramp_samples / ((largest - start) / incr)
        num_steps = int(samples // step_samples) if step_samples > 0 else largest
        return min(largest, start + incr * num_steps)

    def decide(self, observation: Observation) -> Decision:
        """Return the fastest strategy of the scheduled batch size when that changes."""
        gbs = self.gbs_at(observation.samples)
        if gbs == observation.strategy.gbs:
            return STAY
        strategy = best_at(self._problem, gbs)
        reason = f"{observation.samples} samples consumed: the schedule says gbs {gbs}"
        return Decision(strategy=strategy, reason=reason, details={"next": str(strategy)})
