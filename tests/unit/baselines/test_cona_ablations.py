"""CONA with a part taken away."""

from __future__ import annotations

import pytest
from problems import DP4, PP4, TABLE, TableTimes, estimate, observe, problem

from baselines.cona import CONA
from baselines.cona_ablations import CONAGbsOnly, CONALayoutOnly, CONANoGns
from cona.errors import ConfigError
from cona.policy import Policy
from cona.registry import policy
from cona.strategy import Strategy

PP4_8 = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)


def decided(policy: Policy, gns: float, *, iteration_s: float = 0.2) -> Strategy | None:
    """Return what a policy chooses after two iterations at gbs 8 that took 100 s in all."""
    policy.start(problem(TableTimes(TABLE)))
    policy.decide(observe(PP4_8, 1, estimate(gns), iteration_s=iteration_s, train_s=50.0))
    seen = observe(PP4_8, 2, estimate(gns), iteration_s=iteration_s, train_s=100.0)
    return policy.decide(seen).strategy


def test_gbs_only_keeps_the_layout() -> None:
    # All noise: 40 samples/s at 8, 53 at 16, 71 at 32 by data parallelism, 64 by the pipeline.
    assert str(decided(CONA(), 1e6)) == f"{DP4}-mbs1-gbs32"
    assert str(decided(CONAGbsOnly(), 1e6)) == f"{PP4}-mbs1-gbs32"


def test_gbs_only_may_hold_the_layout_of_another_batch() -> None:
    start = policy("cona-gbs-only-layout_gbs32").start(problem(TableTimes(TABLE)))
    assert str(start) == f"{DP4}-mbs1-gbs8"
    with pytest.raises(ConfigError, match="no strategy to choose from"):
        policy("cona-gbs-only-layout_gbs0").start(problem(TableTimes(TABLE)))


def test_layout_only_keeps_the_batch() -> None:
    at_32 = CONALayoutOnly(gbs=32)
    assert str(at_32.start(problem(TableTimes(TABLE)))) == f"{DP4}-mbs1-gbs32"
    # Whatever the noise says, and however slow the layout turns out: the correction of the only
    # layout that was visited holds for all.
    assert decided(CONALayoutOnly(gbs=8), 1e6) is None
    assert decided(CONALayoutOnly(gbs=8), 1e6, iteration_s=9.0) is None


def test_layout_only_needs_a_rung() -> None:
    with pytest.raises(ConfigError, match=r"gbs20: not on the ladder \[8, 16, 32\]; nearest: 16"):
        CONALayoutOnly(gbs=20).start(problem(TableTimes(TABLE)))


def test_no_gns_moves_to_the_largest_throughput_whatever_the_noise() -> None:
    assert decided(CONA(), 0.01) is None
    assert str(decided(CONANoGns(), 0.01)) == f"{DP4}-mbs1-gbs32"


def test_the_differences_to_the_paper_are_parameters_of_cona() -> None:
    built = policy("cona-bias=off-uncertainty=off-cost=off-both=off")
    assert isinstance(built, CONA)
    assert not (built.bias or built.uncertainty or built.cost or built.both)


def test_noise_is_what_cona_believes_times_the_measured_gns() -> None:
    assert decided(policy("cona-noise1000000"), 1.0) == decided(CONA(), 1e6)
    assert decided(policy("cona-noise0.001"), 10.0) == decided(CONA(), 0.01) is None
    with pytest.raises(ConfigError, match="noise0: must be positive and finite"):
        policy("cona-noise0")
