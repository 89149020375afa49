"""Alpa on four layers, by hand and against every plan."""

from __future__ import annotations

import math

import pytest
from chain_costs import ChainCosts, chain_query, shape
from chain_plans import chains, every_plan, pipeline_time
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.alpa import Alpa
from cona.errors import ConfigError
from cona.strategy import divisors


def test_two_stages_by_hand() -> None:
    # A GPU holds two layers: 3 + 3 and 3 + 3 + 1.5 s; one sample at a time, m = 4.
    query = chain_query(ChainCosts(state=100), memory=250, heads=1)
    best = Alpa().plan(query).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    assert [stage.seconds for stage in best.stages] == pytest.approx([6, 7.5])
    assert (best.mbs, best.num_microbatches) == (1, 4)
    assert best.believed_s == pytest.approx(13.5 + 3 * 7.5)


def test_memory_counts_the_stages_behind() -> None:
    # Two layers keep 2 * 30 per micro-batch; the first stage keeps two of them: 40 + 120 > 155.
    # With one layer it needs 20 + 60, and the other three need 60 + 90 with nothing behind.
    query = chain_query(ChainCosts(state=20, kept=30), memory=155, heads=1)
    best = Alpa().plan(query).best
    assert shape(best) == [(1, 1, 1), (3, 1, 1)]
    assert [stage.memory_bytes for stage in best.stages] == pytest.approx([80, 150])
    assert best.believed_s == pytest.approx(13.5 + 3 * 10.5)


def test_the_all_reduce_takes_no_time() -> None:
    # Two replicas do 2 * 13.5 s, whatever the exchange of gradients over a slow link takes.
    best = Alpa().plan(chain_query(ChainCosts(bandwidth=1.0), heads=1)).best
    assert shape(best) == [(4, 2, 1)]
    assert best.believed_s == pytest.approx(27)


def test_nothing_fits() -> None:
    query = chain_query(ChainCosts(state=100e9), memory=150e9, heads=1)
    with pytest.raises(ConfigError) as error:
        Alpa().plan(query)
    assert "alpa: nothing feasible at gbs 4 on 2 GPUs: closest was dp1-tp1-pp2" in str(error.value)
    assert "needs 200 of 150 GB" in str(error.value)


def test_long_chains_move_in_groups() -> None:
    query = chain_query(ChainCosts(state=100), memory=250, heads=1)
    best = Alpa(max_groups=2).plan(query).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    with pytest.raises(ConfigError, match="nothing feasible"):
        Alpa(max_groups=1).plan(query)


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
        pipeline_time(query, stages, samples, may_recompute=False, once_s=lambda stage: 0.0)
        for stages in every_plan(query)
        for samples in divisors(query.gbs)
    )
    if math.isinf(expected):
        with pytest.raises(ConfigError, match="nothing feasible"):
            Alpa().plan(query)
    else:
        best = Alpa().plan(query).best
        assert best.believed_s == pytest.approx(expected)
        assert best.num_gpus == num_gpus
        assert best.memory_bytes is not None
        assert best.memory_bytes <= memory
