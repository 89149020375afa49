"""The contract between the runner and a policy: what it may see and what it may answer.

Source: architecture.md, Contracts. CONA, offline planners, schedules and oracles are all policies;
each is one file under ``baselines/``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from cona.cost import SwitchCost, TimeModel
from cona.gns import GnsEstimate, GradientTerms
from cona.specs import ClusterSpec, EngineKind, LrRule, ModelSpec, TierSpec
from cona.strategy import Strategy, StrategySpace

Details = dict[str, float | str | None]
"""Numbers behind a decision, for the log."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a policy knows before the first iteration."""

    tier: TierSpec
    """Settings of the experiment."""
    model: ModelSpec
    """The model that the clock prices (a proxy's full-size model)."""
    trained_model: ModelSpec
    """The model that is really trained."""
    cluster: ClusterSpec
    """The target cluster."""
    space: StrategySpace
    """S(gbs): the strategies that divide."""
    belief: TimeModel
    """The policy's own time model; the reference time source stays hidden."""
    switch_cost: SwitchCost
    """Seconds of a switch, before any was measured."""
    time_budget_s: float
    """Seconds of the train clock that every policy gets."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """The ladder's global batch sizes, ascending."""
        return self.tier.ladder.rungs


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a policy sees after an iteration; online policies get this and no more."""

    iteration: int
    """Iterations done."""
    samples: int
    """Samples consumed."""
    train_s: float
    """Seconds on the train clock, switches included."""
    strategy: Strategy
    """The strategy that ran the last iteration."""
    iteration_s: float
    """T_meas: seconds of the last iteration."""
    terms: GradientTerms | None
    """The last iteration's unbiased gradient terms; None where not measurable."""
    gns: GnsEstimate
    """Gradient noise scale with its moments, smoothed over the whole run; may hold no estimate."""
    last_switch_s: float | None
    """Seconds of the switch before this iteration, if there was one that changed the layout."""
    is_warmup: bool = False
    """T_meas holds what a start or a switch leaves behind: it says nothing about T."""

    @property
    def tells_time(self) -> bool:
        """Whether T_meas says something about T: not in the warm-up, and only a positive number."""
        return not self.is_warmup and 0 < self.iteration_s < math.inf


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A policy's answer, logged with every iteration that asked for one."""

    strategy: Strategy | None
    """The strategy to switch to; None: stay."""
    reason: str
    """Why, in words."""
    details: Details = field(default_factory=dict)
    """The numbers behind it (R, net_s, cost_s, t_cur_s, t_next_s, ...)."""
    quiet: bool = False
    """Not worth a line in the log: the policy had nothing to weigh."""


STAY = Decision(strategy=None, reason="never switches", quiet=True)


class Policy(Protocol):
    """Chooses the first strategy and, after every iteration, whether to switch.

    A policy must be a deterministic function of what it was shown: a run is resumed by showing it
    the recorded observations again.
    """

    name: ClassVar[str]
    """Registered name, without parameters."""
    kind: ClassVar[str]
    """offline, online, schedule, bound or ablation."""
    summary: ClassVar[str]
    """One line for `cona policies`."""
    source: ClassVar[str]
    """Paper or section, with the year."""
    lr_rule: LrRule | None
    """A learning-rate rule of its own; None or left out: the tier's."""

    belief: str | None
    """Name of a time model of its own; None or left out: the tier's."""

    engine: EngineKind | None
    """Measured clock: an engine of its own; None or left out: the tier's."""

    def start(self, problem: Problem) -> Strategy:
        """Return the first strategy."""

    def decide(self, observation: Observation) -> Decision:
        """Return whether to switch after an iteration."""


Fork = Sequence[tuple[Strategy, int]]
"""One or more stages: a strategy, and how many iterations it runs."""


class Prober(Protocol):
    """Looks ahead from the current state at no cost on the clock; only oracles get one."""

    def __call__(self, fork: Fork) -> float:
        """Return the log perplexity on the probe set after the stages of a fork.

        A stage of no iterations probes the current state. The training state is unchanged
        afterwards.
        """


@runtime_checkable
class SearchingPolicy(Protocol):
    """A policy that accounts for the time of its search; the clocks leave it out."""

    @property
    def search_s(self) -> float:
        """Wall-clock seconds of searching so far, on the machine that runs the policy."""


@runtime_checkable
class ProbingPolicy(Protocol):
    """A policy that may look ahead."""

    def attach(self, probe: Prober) -> None:
        """Give the policy its look-ahead."""


@runtime_checkable
class InformedPolicy(Protocol):
    """A policy that plans with the reference clock itself: only bounds do."""

    def know(self, reference: TimeModel) -> None:
        """Tell the policy the reference time source, before it starts."""
