"""The best fixed strategy of one global batch size: what a perfect offline planner would return.

COPUS (arXiv 2604.26687) calls it Static-GBS. It bounds every uniform offline planner that plans
for the same batch size from below (in iteration time, by the same time model).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cona.cost import TimeModel
from cona.errors import ConfigError
from cona.policy import STAY, Decision, Observation, Problem
from cona.search import best
from cona.specs import LrRule
from cona.strategy import Strategy

LARGEST_GBS = 2**20
"""More samples than anyone trains on at once; guards the search for divisors."""


@dataclass(kw_only=True)
class FixedBest:
    """argmin T over S(gbs), for the whole run."""

    name: ClassVar[str] = "fixed-best"
    kind: ClassVar[str] = "offline"
    summary: ClassVar[str] = "one strategy for the whole run: the fastest at -gbs<N>"
    source: ClassVar[str] = "exhaustive search; Static-GBS of COPUS (2026)"

    gbs: int
    """Global batch size, samples."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    _reference: TimeModel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gbs <= LARGEST_GBS:
            raise ConfigError(
                f"fixed-best-gbs{self.gbs}: the batch size must be between 1 and {LARGEST_GBS}"
            )

    def know(self, reference: TimeModel) -> None:
        """Plan with the reference clock: this is the best that a perfect time model could do."""
        self._reference = reference

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the batch size, by the reference clock."""
        strategies = problem.space.at(self.gbs)
        if not strategies:
            multiple = min(layout.dp for layout in problem.space.layouts)
            nearest = max(1, round(self.gbs / multiple)) * multiple
            raise ConfigError(
                f"fixed-best-gbs{self.gbs}: no layout of {problem.space.num_gpus} GPUs divides "
                f"gbs {self.gbs}; nearest: {nearest}"
            )
        return best(strategies, self._reference)[0]

    def decide(self, observation: Observation) -> Decision:
        """Stay."""
        return STAY
