"""What policies that look ahead train beside their run, counted by playing them without training.

Their forks are free on the clock, not on the cluster. How many there are depends on which batch
size wins; so a policy is played once for every batch size, against a prober that lets it win.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from cona import registry
from cona.asked import AskedPolicy
from cona.gns import NO_ESTIMATE
from cona.policy import Fork, InformedPolicy, Observation, Policy, ProbingPolicy
from cona.scene import Scene
from cona.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class LookAhead:
    """Everything that a policy trains and evaluates beside its run."""

    train_s: float = 0.0
    """Seconds of the forks' iterations, at T of the fastest strategy of each batch size."""
    switch_s: float = 0.0
    """Seconds of the changes of layout on the way into a fork, along it and back."""
    samples: int = 0
    """Samples that the forks train on."""
    num_probes: int = 0
    """Evaluations of the probe set; all but one of every decision end a fork."""

    def __add__(self, other: LookAhead) -> LookAhead:
        """Return both together."""
        return LookAhead(
            train_s=self.train_s + other.train_s,
            switch_s=self.switch_s + other.switch_s,
            samples=self.samples + other.samples,
            num_probes=self.num_probes + other.num_probes,
        )


def looks_ahead(policy: str) -> bool:
    """Return whether a policy, with its parameters, forks the training state."""
    return isinstance(registry.policy(policy), ProbingPolicy)


def most_look_ahead(policy: str, scene: Scene) -> LookAhead:
    """Return the look-ahead of a run, whichever batch size wins: the costliest of all plays.

    Args:
        policy: one that looks ahead, with its parameters.
        scene: model, cluster, prices and budget.

    Raises:
        ConfigError: no strategy of a batch size is feasible.
        PolicyError: the policy fails, or answers what is no strategy or decision.
    """
    rungs = scene.tier.ladder.rungs
    plays = [_Play(policy, scene, favourite).run() for favourite in rungs]
    return max(plays, key=lambda play: play.train_s + play.switch_s)


class _Play:
    """One run of a policy on the modelled clock, of which nothing is trained.

    Args:
        policy: its name with parameters.
        scene: model, cluster, prices and budget.
        favourite: the global batch size that every look-ahead prefers, samples.
    """

    def __init__(self, policy: str, scene: Scene, favourite: int) -> None:
        self._policy: Policy = registry.policy(policy)
        self._asked = AskedPolicy(self._policy, policy)
        self._scene, self._favourite = scene, favourite
        self._current: Strategy | None = None
        self._total = LookAhead()

    def run(self) -> LookAhead:
        """Play until the budget is used up."""
        if isinstance(self._policy, InformedPolicy):
            self._policy.know(self._scene.reference)
        if isinstance(self._policy, ProbingPolicy):
            self._policy.attach(self._probe)
        strategy = self._asked.start(self._scene.problem(self._policy))
        left_s, iteration_s = self._scene.time_budget_s, self._iteration_s(strategy)
        iteration = samples = 0
        train_s = 0.0
        while iteration_s <= left_s:
            self._current = strategy
            iteration, samples = iteration + 1, samples + strategy.gbs
            train_s, left_s = train_s + iteration_s, left_s - iteration_s
            seen = self._observation(iteration, samples, train_s, strategy, iteration_s)
            if (decision := self._asked.decide(seen)).strategy:
                strategy = decision.strategy
                iteration_s = self._iteration_s(strategy)
        return self._total

    def _iteration_s(self, strategy: Strategy) -> float:
        return self._scene.reference.time_s(strategy)

    @staticmethod
    def _observation(
        iteration: int, samples: int, train_s: float, strategy: Strategy, iteration_s: float
    ) -> Observation:
        return Observation(
            iteration=iteration,
            samples=samples,
            train_s=train_s,
            strategy=strategy,
            iteration_s=iteration_s,
            terms=None,
            gns=NO_ESTIMATE,
            last_switch_s=None,
        )

    def _probe(self, fork: Fork) -> float:
        """Account a fork; it falls by a nat if it begins with the favourite batch size."""
        self._total += LookAhead(
            train_s=sum(n * self._iteration_s(strategy) for strategy, n in fork),
            switch_s=self._switches_s([strategy for strategy, n in fork if n]),
            samples=sum(n * strategy.gbs for strategy, n in fork),
            num_probes=1,
        )
        strategy, num_iterations = fork[0]
        return 0.0 if num_iterations and strategy.gbs == self._favourite else 1.0

    def _switches_s(self, strategies: list[Strategy]) -> float:
        path = [self._current, *strategies, self._current]
        known = [strategy for strategy in path if strategy is not None]
        cost = self._scene.switch_cost
        return sum(cost.seconds(old, new, "live") for old, new in pairwise(known))
