"""The norm test against decisions worked out by hand on a recorded trace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, estimate, observe, problem
from walks import walk

from baselines.norm_test import NormTest
from cona.errors import ConfigError
from cona.gns import GradientTerms
from cona.registry import policy
from cona.strategy import Strategy

EIGHT = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)


def test_batch_norm_on_a_recorded_trace() -> None:
    # eta^2 = 1/4, |G|^2 = 1, Var_1 = GNS; |g|^2 = 1 + GNS/gbs; needed = ceil(4*GNS/|g|^2).
    trace = [
        2.0,  # 8/1.25 = 6.4: 7 <= 8 passes
        3.0,  # 12/1.375 = 8.73: 9, the next rung is 16
        5.0,  # 20/1.3125 = 15.2: 16 <= 16 passes
        6.0,  # 24/1.375 = 17.5: 18, the next rung is 32
        90.0,  # 360/3.8125 = 94.4: no larger rung
        0.1,  # never down
    ]
    assert walk(NormTest(eta=0.5), problem(TableTimes(TABLE)), trace) == [
        (0, f"{PP4}-mbs1-gbs8"),
        (2, f"{PP4}-mbs1-gbs16"),
        (4, f"{DP4}-mbs1-gbs32"),
    ]


def test_debiased_norm_on_a_recorded_trace() -> None:
    # needed = ceil(4*GNS).
    trace = [
        2.0,  # 8 passes
        2.5,  # 10: 16
        4.0,  # 16 passes
        4.1,  # 17: 32
    ]
    policy = NormTest(eta=0.5, norm="debiased")
    assert [i for i, _ in walk(policy, problem(TableTimes(TABLE)), trace)] == [0, 2, 4]


def test_uses_the_last_iteration_or_the_smoothed_terms() -> None:
    # The last iteration is noisy, the run as a whole is not.
    terms = GradientTerms(tr_sigma=100.0, mu_sq=1.0)
    seen = replace(observe(EIGHT, 1, estimate(1.0), iteration_s=0.2), terms=terms)
    for norm, switches in (("batch", True), ("debiased", False)):
        policy = NormTest(eta=0.5, norm=norm)  # type: ignore[arg-type]
        policy.start(problem(TableTimes(TABLE)))
        assert (policy.decide(seen).strategy is not None) == switches


def test_stays_where_nothing_can_be_said() -> None:
    policy = NormTest()
    policy.start(problem(TableTimes(TABLE)))
    seen = observe(EIGHT, 1, estimate(1.0), iteration_s=0.2)
    zero = GradientTerms(tr_sigma=8.0, mu_sq=-1.0)  # |g|^2 = -1 + 8/8 = 0
    for terms in (None, zero):
        assert policy.decide(replace(seen, terms=terms)).strategy is None


def test_bad_eta() -> None:
    with pytest.raises(ConfigError, match="norm-test-eta1.5: eta must lie between 0 and 1"):
        policy("norm-test-eta1.5")


@given(st.floats(0.01, 100), st.floats(0.05, 0.95), st.sampled_from([8, 16]))
def test_fails_exactly_below_the_threshold(gns: float, eta: float, gbs: int) -> None:
    thresholds = {"batch": gns * (1 - eta**2) / eta**2, "debiased": gns / eta**2}
    assume(not any(math.isclose(gbs, t, rel_tol=1e-9) for t in thresholds.values()))
    seen = observe(replace(EIGHT, gbs=gbs), 1, estimate(gns), iteration_s=0.2)
    for norm, threshold in thresholds.items():
        policy = NormTest(eta=eta, norm=norm)  # type: ignore[arg-type]
        policy.start(problem(TableTimes(TABLE)))
        assert (policy.decide(seen).strategy is not None) == (gbs < threshold)
