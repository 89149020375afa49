"""The best fixed strategy of one global batch size: what a perfect offline planner would return.

COPUS (arXiv 2604.26687) calls it Static-GBS. It bounds every uniform offline planner that plans
for the same batch size from below (in iteration time, by the same time model).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cona.cost import TimeModel
from cona.errors import ConfigError
from cona.planners import Answer, Query, choose, uniform_plan
from cona.planners.planner import check_gbs
from cona.policy import STAY, Decision, Observation, Problem
from cona.search import best
from cona.specs import EngineKind, LrRule
from cona.strategy import Strategy


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
    engine: EngineKind | None = None
    """Measured clock: engine that trains; None: the tier's. The paper's is deepspeed."""
    _reference: TimeModel | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_gbs(self.name, self.gbs)

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
        return best(strategies, self._known())[0]

    def plan(self, query: Query) -> Answer:
        """Return the fastest strategy of the query, by the reference clock, as a plan.

        Raises:
            ConfigError: no strategy is feasible, or there is no reference clock.
        """
        known = self._known()
        feasible = [s for s in query.strategies if known.why_not(s) is None]
        if not feasible:
            best(query.strategies, known)  # says which rule the first of them breaks
        plans = [
            uniform_plan(s, query.model.num_layers, believed_s=float(seconds))
            for s, seconds in zip(feasible, known.times_s(feasible), strict=True)
        ]
        return choose(self.name, query, plans)

    def _known(self) -> TimeModel:
        if self._reference is None:
            raise ConfigError(f"{self.name}: it plans with the reference clock, and there is none")
        return self._reference

    def decide(self, observation: Observation) -> Decision:
        """Stay."""
        return STAY
