"""Piper on four layers, by hand and against every plan."""

from __future__ import annotations

import math

import pytest
from chain_costs import ChainCosts, chain_query, shape
from chain_plans import Stage, chains, every_plan, stage_seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.piper import Piper
from cona.errors import ConfigError
from cona.planners import Query
from cona.strategy import divisors

BOUNDARY = 16 * 16 * 2
"""Bytes of one sample's activations in the tests' model."""


def test_two_stages_by_hand() -> None:
    # A sample takes 1 s each way over the one boundary: 6 + 2 and 7.5 + 2 s; no fill, 4 samples.
    query = chain_query(ChainCosts(state=100, bandwidth=BOUNDARY), memory=250, heads=1)
    best = Piper().plan(query).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    assert best.mbs == 1
    assert best.believed_s == pytest.approx(4 * 9.5)


def test_replicas_take_turns_and_share_the_exchange() -> None:
    # 13.5/2 s per sample and 4 * 1 * 2,000 B/(2 * 4 * 1,000 B/s): 6.75 + 1.
    costs = ChainCosts(bandwidth=1000.0, layer_params=500.0)
    best = Piper().plan(chain_query(costs, heads=1)).best
    assert shape(best) == [(4, 2, 1)]
    assert best.believed_s == pytest.approx(4 * 7.75)


def test_micro_batches_in_flight_are_shared_by_replicas() -> None:
    # [1 GPU | 2 replicas]: the first stage keeps 3 samples, each replica of the second one.
    query = chain_query(ChainCosts(kept=10, state=1), num_gpus=3, heads=1, gbs=6)
    menu = next(iter(Piper().menus(query)))
    sizes = {(option.dp, option.tp): index for index, option in enumerate(menu.options)}
    assert menu.in_flight(sizes[1, 1], 3) == 3
    assert menu.in_flight(sizes[2, 1], 2) == 1
    assert menu.in_flight(sizes[2, 1], 3) == 2


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match="piper: nothing feasible .* closest was dp1-tp1-pp2"):
        Piper().plan(chain_query(ChainCosts(state=100e9), memory=150e9, heads=1))


def steady_s(query: Query, stages: tuple[Stage, ...], mbs: int) -> float:
    """N * max TPS from scratch; infinite: it does not exist."""
    costs, count = query.costs, query.gbs // mbs
    assert isinstance(costs, ChainCosts)
    slowest = 0.0
    for stage in stages:
        if count % stage.dp:
            return math.inf
        in_flight = min(math.ceil(stage.replicas_to_come / stage.dp), count // stage.dp)
        compute = stage_seconds(query, stage, mbs, in_flight, may_recompute=True)
        sides = (stage.index > 0) + (stage.index < stage.num_stages - 1)
        comm = sides * 2 * mbs * BOUNDARY / costs.bandwidth
        weights = (stage.last - stage.first) * costs.layer_params / stage.tp
        sync = 4 * (stage.dp - 1) * weights / (stage.dp * count * costs.bandwidth)
        slowest = max(slowest, compute / stage.dp + comm + sync)
    return count * slowest


@settings(max_examples=40, deadline=None)
@given(
    costs=chains,
    num_gpus=st.sampled_from((1, 2, 4)),
    memory=st.sampled_from((30.0, 60.0, 1e9)),
    heads=st.sampled_from((1, 4)),
)
def test_no_plan_is_faster(costs: ChainCosts, num_gpus: int, memory: float, heads: int) -> None:
    query = chain_query(costs, num_gpus=num_gpus, memory=memory, heads=heads)
    expected = min(
        steady_s(query, stages, mbs) for stages in every_plan(query) for mbs in divisors(query.gbs)
    )
    if math.isinf(expected):
        with pytest.raises(ConfigError, match="nothing feasible"):
            Piper().plan(query)
    else:
        assert Piper().plan(query).best.believed_s == pytest.approx(expected)
