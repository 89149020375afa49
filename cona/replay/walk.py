"""The loop of a replay: that of `cona.runner` with the same clock, but the noise of a trace.

Source: method.md 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cona import registry
from cona.asked import AskedPolicy
from cona.clock import ModelledClock
from cona.cost import TimeModel
from cona.errors import ConfigError, RunError
from cona.policy import InformedPolicy, Observation, Policy, ProbingPolicy, Problem
from cona.replay.trace import Trace
from cona.runner import ROUNDING
from cona.scene import Scene
from cona.strategy import Strategy


@dataclass(kw_only=True)
class ReplayStage:
    """A stretch of the replay under one strategy."""

    strategy: Strategy
    samples: int
    """Consumed samples when it began."""
    train_s: float
    """Train clock when it began, its switch included, seconds."""
    switch_s: float
    """Seconds charged for switching to it."""
    gns: float | None
    """Smoothed GNS when it was chosen, samples; None: no estimate."""
    reason: str
    """Why it was chosen."""
    iteration_s: float
    """T by the reference clock, seconds."""
    believed_s: float | None
    """T by the policy's belief, seconds; None: infeasible by it."""
    num_iterations: int = 0

    @property
    def compute_s(self) -> float:
        """Predicted seconds of its iterations."""
        return self.num_iterations * self.iteration_s


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A finished replay."""

    problem: Problem
    reference: TimeModel
    policy: str
    stages: tuple[ReplayStage, ...]
    samples: int
    """Samples consumed."""
    train_s: float
    """Train clock at the end, seconds."""
    notes: tuple[str, ...] = ()
    """What was done other than asked for, a sentence each."""


@dataclass
class Walk:
    """One policy on one trace under one clock: the runner's loop without training."""

    scene: Scene
    """Model, cluster, clock, ladder and budget."""
    policy_name: str
    """Policy with its parameters."""
    trace: Trace
    """The gradient noise."""
    until: float = math.inf
    """Consumed samples at which the walk ends, if it still has time."""
    stages: list[ReplayStage] = field(default_factory=list)
    iteration: int = 0
    samples: int = 0
    last_switch_s: float | None = None
    out_of_time: bool = False

    def __post_init__(self) -> None:
        scene, tier = self.scene, self.scene.tier
        self.policy = seeing_policy(self.policy_name)
        self.asked = AskedPolicy(self.policy, self.policy_name)
        self.problem = scene.problem(self.policy)
        self.clock = ModelledClock(scene.reference, scene.switch_cost, tier.clock.switch_cost)
        self.player = self.trace.play(tier.gns.decay_per_sample)

    def finish(self) -> Replay:
        """Walk until the budget is used or the end is reached."""
        if isinstance(self.policy, InformedPolicy):
            self.policy.know(self.scene.reference)
        self._begin_stage(self.asked.start(self.problem), gns=None, reason="start", switch_s=0.0)
        if not self._fits(self.strategy):
            raise RunError(
                f"policy '{self.policy_name}': one iteration of {self.strategy} takes longer "
                f"than the whole budget of {self.problem.time_budget_s:.4g} s; set a larger "
                f"budget.iterations than {self.scene.tier.budget.iterations}"
            )
        while not self.out_of_time and self.samples < self.until:
            self._iterate()
        return Replay(
            problem=self.problem,
            reference=self.scene.reference,
            policy=self.policy_name,
            stages=tuple(self.stages),
            samples=self.samples,
            train_s=self.clock.train_s,
        )

    @property
    def strategy(self) -> Strategy:
        """The strategy in force."""
        return self.stages[-1].strategy

    def _iterate(self) -> None:
        iteration_s = self.clock.add_iteration(self.strategy)
        self.iteration += 1
        self.samples += self.strategy.gbs
        self.stages[-1].num_iterations += 1
        self._decide(iteration_s)
        self.out_of_time = self.out_of_time or not self._fits(self.strategy)

    def _decide(self, iteration_s: float) -> None:
        noise = self.player.advance(self.samples)
        decision = self.asked.decide(
            Observation(
                iteration=self.iteration,
                samples=self.samples,
                train_s=self.clock.train_s,
                strategy=self.strategy,
                iteration_s=iteration_s,
                terms=noise.terms,
                gns=noise.estimate,
                last_switch_s=self.last_switch_s,
            )
        )
        self.last_switch_s = None
        if decision.strategy is not None:
            self._switch(decision.strategy, noise.estimate.gns, decision.reason)

    def _switch(self, new: Strategy, gns: float | None, reason: str) -> None:
        old = self.strategy
        self._check(new)
        costs = self.clock.switch_costs_s(old, new)
        switch_s = costs[self.clock.preset]
        if not self._fits(new, switch_s):
            self.out_of_time = True
            return
        self.clock.add_switch(costs)
        if new.layout != old.layout:
            self.last_switch_s = switch_s
        self._begin_stage(new, gns=gns, reason=reason, switch_s=switch_s)

    def _begin_stage(
        self, new: Strategy, *, gns: float | None, reason: str, switch_s: float
    ) -> None:
        self._check(new)
        belief = self.problem.belief
        self.stages.append(
            ReplayStage(
                strategy=new,
                samples=self.samples,
                train_s=self.clock.train_s,
                switch_s=switch_s,
                gns=gns,
                reason=reason,
                iteration_s=self.clock.iteration_s(new),
                believed_s=None if belief.why_not(new) else belief.time_s(new),
            )
        )

    def _check(self, strategy: Strategy) -> None:
        broken = self.problem.space.why_not(strategy) or self.scene.reference.why_not(strategy)
        if broken:
            raise RunError(f"policy '{self.policy_name}' chose {strategy}: {broken}")

    def _fits(self, strategy: Strategy, switch_s: float = 0.0) -> bool:
        ahead_s = self.clock.train_s + switch_s + self.clock.iteration_s(strategy)
        return ahead_s <= self.problem.time_budget_s * (1 + ROUNDING)


def seeing_policy(text: str) -> Policy:
    """Return a policy that needs no more than a trace holds. Raises ConfigError."""
    policy = registry.policy(text)
    if isinstance(policy, ProbingPolicy):
        raise ConfigError(
            f"policy '{text}' looks ahead by training, which a trace cannot show; replay one that "
            "does not, like cona"
        )
    return policy
