"""Mist's objective on four layers, by hand and against every plan."""

from __future__ import annotations

import math

import pytest
from chain_costs import ChainCosts, chain_query, shape
from chain_plans import Stage, chains, every_plan, pipeline_time
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.mist import Mist
from cona.errors import ConfigError
from cona.strategy import divisors


def test_a_later_stage_hides_its_step() -> None:
    # Passes as for Alpa, 13.5 + 3 * 7.5; each half of the model's step takes 4 s, and the second
    # stage's is hidden behind the 6 s of the first: max(4 - 0, 4 - 6).
    query = chain_query(ChainCosts(state=100, optimizer_s=8), memory=250, heads=1)
    best = Mist().plan(query).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    assert best.believed_s == pytest.approx(36 + 4)


def test_a_slow_all_reduce_makes_a_pipeline() -> None:
    # Two replicas: 27 s of passes and 2 * 1/2 * 4,000 B over the link.
    fast = Mist().plan(chain_query(ChainCosts(bandwidth=1000.0), heads=1)).best
    assert shape(fast) == [(4, 2, 1)]
    assert fast.believed_s == pytest.approx(27 + 4)
    slow = Mist().plan(chain_query(ChainCosts(bandwidth=250.0), heads=1)).best
    assert shape(slow) == [(2, 1, 1), (2, 1, 1)]
    assert slow.believed_s == pytest.approx(36)


def test_replicas_share_the_step_of_a_sharded_optimizer() -> None:
    costs = ChainCosts(optimizer_s=8)
    whole = Mist().plan(chain_query(costs, heads=1)).best
    sharded = Mist().plan(chain_query(costs, heads=1, zero_stage=1)).best
    assert (whole.believed_s, sharded.believed_s) == pytest.approx((27 + 8, 27 + 4))


def test_one_layer_is_recomputed_so_that_two_fit() -> None:
    # 40 + 120 > 155; one layer computed again keeps a quarter, 45 less, and takes 1 s more.
    costs = ChainCosts(state=20, kept=30, bandwidth=100.0)
    best = Mist().plan(chain_query(costs, memory=155, heads=1)).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    assert best.stages[0].recompute == ("full", "none")
    assert [stage.memory_bytes for stage in best.stages] == pytest.approx([115, 100])
    assert best.believed_s == pytest.approx(7 + 7.5 + 3 * 7.5)


def test_all_layers_recompute_where_the_techniques_say_so() -> None:
    best = Mist().plan(chain_query(ChainCosts(), heads=1, recompute="full")).best
    assert [stage.recompute for stage in best.stages] == ["full"]
    assert best.believed_s == pytest.approx(2 * (4 * 4 + 1.5))


@settings(max_examples=40, deadline=None)
@given(
    costs=chains,
    num_gpus=st.sampled_from((1, 2, 4)),
    memory=st.sampled_from((30.0, 60.0, 1e9)),
    heads=st.sampled_from((1, 4)),
)
def test_no_plan_is_faster(costs: ChainCosts, num_gpus: int, memory: float, heads: int) -> None:
    query = chain_query(costs, num_gpus=num_gpus, memory=memory, heads=heads)

    def once_s(stage: Stage) -> float:
        share = (stage.last - stage.first) / 4
        sent = 2 * (stage.dp - 1) / stage.dp * 4 * costs.layer_params * share / stage.tp
        return sent / costs.bandwidth + costs.optimizer_s / stage.tp * share

    expected = min(
        pipeline_time(query, stages, samples, may_recompute=True, once_s=once_s)
        for stages in every_plan(query)
        for samples in divisors(query.gbs)
    )
    if math.isinf(expected):
        with pytest.raises(ConfigError, match="mist: nothing feasible"):
            Mist().plan(query)
    else:
        best = Mist().plan(query).best
        assert best.believed_s == pytest.approx(expected)
        assert best.memory_bytes is not None
        assert best.memory_bytes <= memory * (1 + 1e-9)
