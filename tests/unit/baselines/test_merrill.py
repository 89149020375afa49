"""Batch-size warm-up by a measured critical batch, against decisions worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, estimate, observe, problem
from walks import walk

from baselines.merrill import Merrill
from cona.errors import ConfigError
from cona.policy import Fork
from cona.registry import policy
from cona.strategy import Strategy


class Branches:
    """A look-ahead whose log perplexity depends on the batch size of the branch only."""

    def __init__(self, losses: dict[int, float]) -> None:
        self.losses = losses
        self.asked: list[tuple[int, int]] = []

    def __call__(self, fork: Fork) -> float:
        self.asked += [(strategy.gbs, iterations) for strategy, iterations in fork]
        return self.losses[fork[-1][0].gbs]


def started(losses: dict[int, float]) -> tuple[Merrill, Branches]:
    policy, branches = Merrill(), Branches(losses)
    policy.attach(branches)
    return policy, branches


def test_doubles_up_to_the_critical_batch() -> None:
    policy, branches = started({8: 3.0, 16: 3.004, 32: 3.02})
    # From 8: 16 is within 0.01 nats, 32 is not: the critical batch is 16, so the batch doubles.
    # From 16: 3.02 > 3.004 + 0.01: it stays.
    chain = walk(policy, problem(TableTimes(TABLE)), [1.0] * 6)
    assert chain == [(0, f"{PP4}-mbs1-gbs8"), (2, f"{PP4}-mbs1-gbs16")]
    # All branches of a measurement see 4*32 samples. Iteration 2 measures from 8, iterations 4 and
    # 6 from 16, where 4*16 = 64 is beyond the ladder.
    assert branches.asked == [(8, 16), (16, 8), (32, 4)] + 2 * [(16, 8), (32, 4)]


def test_doubles_once_at_a_time() -> None:
    policy, _ = started({8: 3.0, 16: 3.0, 32: 3.0})
    chain = walk(policy, problem(TableTimes(TABLE)), [1.0] * 8)
    assert chain[1:] == [(2, f"{PP4}-mbs1-gbs16"), (4, f"{DP4}-mbs1-gbs32")]


def test_measures_only_while_it_can_grow() -> None:
    policy, branches = started({8: 3.0, 16: 3.0, 32: 3.0})
    walk(policy, problem(TableTimes(TABLE)), [1.0] * 20)
    assert len(branches.asked) == 3 + 2


def test_a_diverged_branch_is_not_within_the_tolerance() -> None:
    policy, _ = started({8: math.inf, 16: math.inf, 32: math.inf})
    policy.start(problem(TableTimes(TABLE)))
    current = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
    decision = policy.decide(observe(current, 2, estimate(1.0), iteration_s=0.2))
    assert decision.strategy is None
    assert decision.details["loss_gbs16"] is None
    assert decision.details["critical_gbs"] == 8


def test_bad_iterations() -> None:
    with pytest.raises(ConfigError, match="merrill-iterations0: must be at least 1"):
        policy("merrill-iterations0")


@given(st.dictionaries(st.sampled_from([16, 32]), st.floats(0, 10), min_size=2))
def test_grows_if_and_only_if_a_larger_branch_is_within_the_tolerance(
    losses: dict[int, float],
) -> None:
    policy, _ = started({8: 5.0, **losses})
    chain = walk(policy, problem(TableTimes(TABLE)), [1.0] * 2)
    assert (len(chain) == 2) == (min(losses.values()) <= 5.01)
