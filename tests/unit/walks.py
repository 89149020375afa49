"""Walks a policy along a recorded trace of noise scales, as the runner would."""

from __future__ import annotations

from collections.abc import Sequence

from problems import estimate

from cona.cost import TimeModel
from cona.gns import GradientTerms
from cona.policy import Observation, Policy, Problem
from cona.strategy import Strategy

Chain = list[tuple[int, str]]
"""The strategies of a walk: (iterations done, strategy from then on)."""


def walk(policy: Policy, problem: Problem, trace: Sequence[float]) -> Chain:
    """Return the chain of a policy that has already what it may know or probe.

    Args:
        policy: not started yet.
        problem: its belief is also the clock.
        trace: the smoothed noise scale after each iteration, samples.
    """
    strategy = policy.start(problem)
    chain: Chain = [(0, str(strategy))]
    samples, train_s = 0, 0.0
    for iteration, gns in enumerate(trace, start=1):
        seen = _observe(iteration, samples, train_s, strategy, gns, problem.belief)
        samples, train_s = seen.samples, seen.train_s
        decision = policy.decide(seen)
        if decision.strategy is not None:
            strategy = decision.strategy
            chain.append((iteration, str(strategy)))
    return chain


def _observe(
    iteration: int, samples: int, train_s: float, strategy: Strategy, gns: float, clock: TimeModel
) -> Observation:
    smoothed = estimate(gns)
    return Observation(
        iteration=iteration,
        samples=samples + strategy.gbs,
        train_s=train_s + clock.time_s(strategy),
        strategy=strategy,
        iteration_s=clock.time_s(strategy),
        terms=GradientTerms(tr_sigma=smoothed.tr_sigma, mu_sq=smoothed.mu_sq),
        gns=smoothed,
        last_switch_s=None,
    )
