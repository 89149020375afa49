"""Seesaw: doubles the batch, and divides the learning rate by sqrt(2), where others halve the rate.

Meterez et al. 2025 (arXiv 2510.14717). The reference is the model's own cosine at the smallest
batch. At its k-th halving gbs becomes 2^k times the smallest, and the rate peak * 2^(-k/2); once
the largest batch is reached, the rate is halved as in the reference. Both follow from the
learning-rate rule `seesaw`: sqrt(gbs) scaling of a rate that falls in halves (`cona.lr`).

A cosine that ends above half of its peak never halves (GPT-3 1.3B: 3e-4 to 2e-4), and then the
batch never grows: `seesaw-reference=zero` lets the reference end at zero.

Left out: steps finer than halving, with which the paper follows the cosine more closely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cona.controller.narrow import best_at
from cona.lr import LearningRate
from cona.policy import STAY, Decision, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy


@dataclass(kw_only=True)
class Seesaw:
    """Doubles gbs wherever the reference schedule has halved, best layout at each size."""

    name: ClassVar[str] = "seesaw"
    kind: ClassVar[str] = "schedule"
    summary: ClassVar[str] = "where the cosine would halve lr: lr / sqrt 2 and twice the gbs"
    source: ClassVar[str] = "Seesaw (Meterez et al. 2025, arXiv 2510.14717)"

    reference: Literal["model", "zero"] = "model"
    """Where the reference cosine ends: at the model's min_lr, or at zero."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _schedule: LearningRate = field(init=False, repr=False)

    @property
    def lr_rule(self) -> LrRule | None:
        """Its own rule: without it, it would be another method."""
        return "seesaw" if self.reference == "model" else "seesaw_to_zero"

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        self._problem = problem
        spec, model = problem.tier.learning_rate, problem.trained_model
        self._schedule = LearningRate(spec, model, self.lr_rule)
        return best_at(problem, problem.rungs[0])

    def gbs_at(self, samples: int) -> int:
        """Return the global batch size of the iteration that ends at consumed samples."""
        rungs = self._problem.rungs
        halvings = self._schedule.num_halvings(samples * self._schedule.seq_length)
        return rungs[min(halvings, len(rungs) - 1)]

    def decide(self, observation: Observation) -> Decision:
        """Return the fastest strategy of the next rung when the reference halves."""
        current = observation.strategy.gbs
        # The rate of an iteration is that of its end: the batch must change with it.
        gbs = self.gbs_at(observation.samples + current)
        if gbs == current:
            return STAY
        strategy = best_at(self._problem, gbs)
        reason = f"{observation.samples} samples consumed: the reference rate has halved"
        return Decision(strategy=strategy, reason=reason, details={"next": str(strategy)})
