"""What policies do with numbers that are none: they stay, or switch for a reason that is one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, estimate, observe, problem

from cona import registry
from cona.gns import GnsEstimate, GradientTerms
from cona.policy import Decision, Fork, InformedPolicy, Observation, Policy, ProbingPolicy
from cona.strategy import Strategy

NAN, INF = math.nan, math.inf
ODD = [NAN, INF, -INF, 0.0, -1.0, 1e-320, 1e-300, 1e300]
VALUES = st.sampled_from([*ODD, 1.0, 30.0])
PARAMETERS = {"cona-layout-only": "-gbs16", "fixed-best": "-gbs16"}
TIMES = {(layout, gbs): 0.1 + gbs / 100 for layout in (DP4, PP4) for gbs in range(1, 33)} | TABLE
"""Seconds of batch sizes between the rungs too: some policies use them."""
MOVING = ("online", "schedule", "ablation", "bound")
VARIANTS = [
    "cona-uncertainty=off",
    "cona-cost=off",
    "cona-both=off",
    "cona-bias=off",
    "cona-noise16",
    "cona-paper-fallback=on",
    "norm-test-norm=debiased",
    "norm-test-eta0.000001",
    "copus-c0",
    "greedy-oracle-charged=on",
]
POLICIES = [
    f"{name}{PARAMETERS.get(name, '')}"
    for name, kind in registry.policies().items()
    if kind.kind in MOVING
] + VARIANTS
NEEDS_GNS = [p for p in POLICIES if p.startswith(("cona", "copus", "cbs", "pollux", "norm-test"))]
NEEDS_GNS.remove("cona-no-gns")


def started(name: str, losses: list[float] | None = None) -> tuple[Policy, Strategy]:
    """Return a policy that has begun; forks of an oracle end at these log perplexities in turn."""
    policy, ends = registry.policy(name), losses or [1.0]
    asked: list[Fork] = []

    def probe(fork: Fork) -> float:
        asked.append(fork)
        return ends[(len(asked) - 1) % len(ends)]

    if isinstance(policy, ProbingPolicy):
        policy.attach(probe)
    if isinstance(policy, InformedPolicy):
        policy.know(TableTimes(TIMES))
    return policy, policy.start(problem(TableTimes(TIMES)))


def moments(**changes: float) -> GnsEstimate:
    return replace(estimate(30.0, relative_se=0.01), **changes)


def check(decision: Decision, seen: Observation) -> None:
    """A decision can be logged, and what it switches to exists."""
    json.dumps(dict(decision.details), allow_nan=False)
    if decision.strategy is not None:
        assert decision.strategy in problem().space.at(decision.strategy.gbs)
        assert "nan" not in decision.reason
        assert decision.strategy != seen.strategy


estimates = st.builds(
    GnsEstimate,
    num_terms=st.sampled_from([0, 1, 2, 100]),
    tr_sigma=VALUES,
    mu_sq=VALUES,
    var_xx=VALUES,
    var_yy=VALUES,
    var_xy=VALUES,
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12)
@given(st.lists(st.tuples(estimates, VALUES, VALUES, VALUES), min_size=1, max_size=12), st.data())
def test_no_policy_breaks_on_odd_numbers(
    name: str, steps: list[tuple[GnsEstimate, float, float, float]], data: Any
) -> None:
    policy, strategy = started(name, data.draw(st.lists(VALUES, min_size=1, max_size=4)))
    for i, (gns, seconds, x, y) in enumerate(steps, start=1):
        seen = observe(strategy, i * 4, gns, iteration_s=seconds, train_s=float(i))
        seen = replace(seen, terms=GradientTerms(tr_sigma=x, mu_sq=y))
        decision = policy.decide(seen)
        check(decision, seen)
        strategy = decision.strategy or strategy


@pytest.mark.parametrize("name", NEEDS_GNS)
@pytest.mark.parametrize("change", [{"tr_sigma": NAN}, {"mu_sq": NAN}, {"mu_sq": INF}])
def test_nobody_switches_on_a_gns_that_is_no_number(name: str, change: dict[str, float]) -> None:
    policy, strategy = started(name)
    nothing = moments(**change)
    for i in range(1, 20):
        seen = observe(strategy, i * 4, nothing, iteration_s=0.2)
        assert policy.decide(seen).strategy is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, NAN, INF])
def test_times_that_are_no_numbers_count_for_nothing(seconds: float) -> None:
    clean, dirty = started("cona")[0], started("cona")[0]
    for i in range(1, 30):
        seen = observe(started("cona")[1], i, estimate(200.0), iteration_s=0.2)
        assert dirty.decide(replace(seen, iteration_s=seconds)).strategy is None
        decision = clean.decide(seen)
        assert dirty.decide(seen).strategy == decision.strategy
        if decision.strategy is not None:
            return
    raise AssertionError("a noise scale of 200 samples makes CONA switch")


@pytest.mark.parametrize("end", [INF, NAN])
@pytest.mark.parametrize("winner", [0, 1, 2])
def test_a_fork_that_diverges_loses(end: float, winner: int) -> None:
    # Before any fork, then the forks of gbs 8, 16 and 32; one alone is finite, though it is worse.
    losses = [3.0, end, end, end]
    losses[1 + winner] = 5.0
    _, first = started("greedy-oracle", losses)
    assert first.gbs == (8, 16, 32)[winner]


def test_where_every_fork_diverges_one_is_chosen_all_the_same() -> None:
    policy, first = started("greedy-oracle", [3.0, INF, INF, INF])
    seen = observe(first, 10_000, estimate(1.0), iteration_s=1e9)
    for _ in range(10_000):
        if not (decision := policy.decide(seen)).quiet:
            assert decision.details["score_gbs8"] is None
            return
    raise AssertionError("the oracle never came to a decision")


@pytest.mark.parametrize("end", [INF, NAN])
def test_a_diverged_branch_does_not_raise_the_critical_batch(end: float) -> None:
    policy, first = started("merrill", [3.0, end, end])
    decision = policy.decide(observe(first, 8, estimate(1.0), iteration_s=0.2))
    assert decision.strategy is None
    assert decision.details["critical_gbs"] == 8
