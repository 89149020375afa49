"""Offline planners, and how one is a policy: it plans once and never switches.

A planner combines the pieces of `Costs` by its own iteration formula, search and rule of what
fits. Its plan may have unequal stages; a policy runs the uniform strategy nearest to it.

Source: baselines.md, Offline planners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from cona.cost.table import table_path
from cona.errors import ConfigError
from cona.planners.plans import Plan, projected
from cona.planners.query import Answer, Query, query_of
from cona.policy import Decision, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy

LARGEST_GBS = 2**20
"""More samples than anyone trains on at once; guards the search for divisors."""


def check_gbs(policy: str, gbs: int) -> None:
    """Raise ConfigError if a policy is to plan for a batch of no or of too many samples."""
    if not 1 <= gbs <= LARGEST_GBS:
        raise ConfigError(f"{policy}-gbs{gbs}: the batch size must be between 1 and {LARGEST_GBS}")


@runtime_checkable
class Planner(Protocol):
    """Finds a plan for one global batch size; each is also a policy that never switches."""

    name: ClassVar[str]
    """Registered name, without parameters."""
    kind: ClassVar[str]
    """Always offline."""
    summary: ClassVar[str]
    """One line for `cona policies`."""
    source: ClassVar[str]
    """Paper with the year."""

    def plan(self, query: Query) -> Answer:
        """Return the best plan; raises ConfigError naming the closest where nothing fits."""


@dataclass(kw_only=True)
class OfflinePlanner(ABC):
    """Makes a planner a policy: it plans before the first iteration and never switches.

    A subclass is a dataclass with ``name``, ``kind``, ``summary``, ``source`` and ``plan``.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "offline"

    gbs: int | None = None
    """Global batch size, samples; None: the rung with the most samples per second, as believed."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Cost model that prices the pieces; None: the tier's."""
    _note: str = field(init=False, repr=False, default="")
    _said: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        if self.gbs is not None:
            check_gbs(self.name, self.gbs)

    @abstractmethod
    def plan(self, query: Query) -> Answer:
        """Return the best plan; raises ConfigError naming the closest where nothing fits."""

    def query(self, problem: Problem, gbs: int) -> Query:
        """Return what is asked of the planner in a run."""
        name = self.belief or problem.tier.belief
        # A table has no pieces: those that complete it are the improved model's.
        preset = "improved" if table_path(name) else name
        return query_of(
            problem.model,
            problem.cluster,
            gbs,
            preset=preset,
            mbs_max=problem.tier.ladder.mbs_max,
            techniques=problem.space.techniques,
        )

    def start(self, problem: Problem) -> Strategy:
        """Return the plan's strategy, or the uniform one that is nearest to unequal stages."""
        best = self._best(problem)
        strategy, self._note = projected(best, problem.space)
        return strategy

    def decide(self, observation: Observation) -> Decision:
        """Stay; the first answer says how the plan was made uniform, if it had to be."""
        note, said, self._said = self._note, self._said, True
        return Decision(strategy=None, reason=note or "never switches", quiet=said or not note)

    def _best(self, problem: Problem) -> Plan:
        if self.gbs is not None:
            return self.plan(self.query(problem, self.gbs)).best
        found, why = [], ""
        for gbs in problem.rungs:
            try:
                found.append(self.plan(self.query(problem, gbs)).best)
            except ConfigError as error:  # another rung may still fit
                why = str(error)
        if not found:
            raise ConfigError(why)
        return max(found, key=lambda plan: plan.gbs / plan.believed_s)
