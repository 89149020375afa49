"""Galvatron's costs and its two searches on four layers, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chain_costs import ChainCosts, chain_query, shape
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.galvatron import Galvatron, GalvatronUniform, even_layers, layer_strategies
from cona.errors import ConfigError
from cona.planners.layer_search import LayerSearch
from cona.planners.layer_strategies import LayerCosts, LayerStrategy, Linear, overlapped_s
from cona.planners.stage_prices import StagePricer

MB = 1e6
PLAIN = ChainCosts(head_s=0.0, bandwidth=1000.0)
"""A layer's exchange of gradients between two replicas takes 1 s."""

SOME = ("dp2-tp1-zero0", "dp2-tp1-zero3", "dp2-tp1-zero0-recompute", "dp1-tp2-zero0-recompute")
"""Few enough strategies to try every choice of four layers."""


def costs_of(costs: ChainCosts, **changes: object) -> LayerCosts:
    return LayerCosts(StagePricer(chain_query(costs, **changes)))


def test_forward_is_a_line_over_the_local_batch() -> None:
    found = costs_of(ChainCosts(fixed_s=0.5, head_s=3.0)).forward
    assert (found[0].per_sample_s, found[0].fixed_s) == pytest.approx((1.0, 0.5))
    # The last layer stands for the head too: 3 s of both passes, a third of them forward.
    assert (found[3].per_sample_s, found[3].fixed_s) == pytest.approx((2.0, 0.5))
    assert Linear.fit([4], [8.0])(2) == pytest.approx(4)


def test_overlap_slows_both_down() -> None:
    # 1.13 s together for the first second of each, then 3 s of the longer one.
    assert overlapped_s(np.array([4.0]), np.array([1.0]))[0] == pytest.approx(4.13)
    assert overlapped_s(np.array([1.0]), np.array([4.0]))[0] == pytest.approx(4.13)


@pytest.mark.parametrize(
    ("strategy", "microbatch_s", "once_s"),
    [
        # local batch 2: 3 * 2; a second of exchange beside 4 s of backward
        (LayerStrategy(tp=1, dp=2, zero_stage=0, recompute=False), 6.0, 0.13),
        (LayerStrategy(tp=1, dp=2, zero_stage=2, recompute=True), 8.0, 0.13),
        # zero3 gathers the weights: half an all-reduce
        (LayerStrategy(tp=1, dp=2, zero_stage=3, recompute=False), 6.5, 0.13),
        # local batch 4 on two GPUs: 3 * 2, and 4 all-reduces of 4 * 512 B at 1,000 B/s
        (LayerStrategy(tp=2, dp=1, zero_stage=0, recompute=False), 6 + 4 * 2.048, 0.0),
        (LayerStrategy(tp=2, dp=1, zero_stage=0, recompute=True), 8 + 6 * 2.048, 0.0),
    ],
)
def test_one_layer(strategy: LayerStrategy, microbatch_s: float, once_s: float) -> None:
    table = costs_of(PLAIN).table([strategy], samples=4)
    assert table.microbatch_s[0, 0] == pytest.approx(microbatch_s)
    assert table.once_s[0, 0] == pytest.approx(once_s)


def test_a_relayout_gathers_what_the_larger_tp_lacks() -> None:
    # tp 1 -> 2 on two GPUs: each rank of the two needs all 4 samples and has 2 of them.
    found = costs_of(PLAIN).relayout_s([1, 2], samples=4, num_gpus=2)
    np.testing.assert_allclose(found, [[0, 1.024], [1.024, 0]])


def test_replicas_by_hand() -> None:
    # Two micro-batches of two samples: 2 * 4 * 3 s, and 0.13 s more for each layer's exchange.
    best = GalvatronUniform().plan(chain_query(PLAIN, heads=1)).best
    assert shape(best) == [(4, 2, 1)]
    assert best.believed_s == pytest.approx(24 + 4 * 0.13)


def test_a_pipeline_by_hand() -> None:
    # A model that one GPU cannot hold, whatever its replicas shard: 2 * 6 + 3 * 6.
    costs = ChainCosts(head_s=0.0, bandwidth=1000.0, base=100 * MB, ends=(150 * MB, 150 * MB))
    best = Galvatron().plan(chain_query(costs, heads=1, memory=300 * MB)).best
    assert shape(best) == [(2, 1, 1), (2, 1, 1)]
    assert best.believed_s == pytest.approx(12 + 3 * 6)


def test_layers_share_the_memory() -> None:
    # 100 MB of state a layer, 250 MB in all. zero3 on all layers needs 200 MB and half a second
    # per layer more; one layer may do without.
    costs = ChainCosts(head_s=0.0, bandwidth=1000.0, state=100 * MB)
    query = chain_query(costs, heads=1, memory=250 * MB)
    uniform, mixed = (kind().plan(query).best for kind in (GalvatronUniform, Galvatron))
    assert uniform.believed_s == pytest.approx(24 + 4 * 0.5 + 4 * 0.13)
    assert uniform.notes == "ZeRO-3 on 4 of 4 layers"
    assert mixed.believed_s == pytest.approx(24 + 3 * 0.5 + 4 * 0.13)
    assert mixed.notes == "ZeRO-3 on 3 of 4 layers"
    assert (uniform.memory_bytes, mixed.memory_bytes) == pytest.approx((200 * MB, 250 * MB))


def test_layers_of_unlike_tp_are_mixed() -> None:
    # Heavy activations want tp on some layers only.
    pricer = StagePricer(chain_query(ChainCosts(), num_gpus=2))
    search = LayerSearch(
        costs=LayerCosts(pricer),
        strategies=layer_strategies(pricer, 2, 4),
        samples=4,
        layers=(4,),
        unit_bytes=MB,
    )
    names = list(map(str, search.strategies))
    one, two = names.index("dp2-tp1-zero0"), names.index("dp1-tp2-zero0")
    plan = search.plan((one, one, one, two))
    assert shape(plan) == [(4, 2, 1)]
    assert plan.why_not_uniform == "layers of a stage differ: 3 layers dp2-tp1, 1 layer dp1-tp2"


def test_the_last_stage_takes_the_rest() -> None:
    assert even_layers(16, 4) == (4, 4, 4, 4)
    assert even_layers(11, 4) == (2, 2, 2, 5)


def test_layers_leave_the_slowest_stage() -> None:
    # The head counts as two layers on the last stage: 6 + 12 and 3 * 12 s, or 9 + 9 and 3 * 9 s.
    costs = ChainCosts(head_s=6.0, bandwidth=1000.0, base=100 * MB, ends=(150 * MB, 150 * MB))
    query = chain_query(costs, heads=1, memory=300 * MB)
    even, balanced = (Galvatron(balance=b).plan(query).best for b in (False, True))
    assert (shape(even), even.believed_s) == ([(2, 1, 1), (2, 1, 1)], pytest.approx(54))
    assert (shape(balanced), balanced.believed_s) == ([(3, 1, 1), (1, 1, 1)], pytest.approx(45))


def test_strategies_of_a_stage() -> None:
    pricer = StagePricer(chain_query(ChainCosts(), num_gpus=4))
    found = layer_strategies(pricer, 4, 2)  # two samples: dp 4 has none for each replica
    assert {(s.dp, s.tp) for s in found} == {(2, 2), (1, 4)}
    assert {s.zero_stage for s in found if s.dp == 2} == {0, 2, 3}
    assert {s.zero_stage for s in found if s.dp == 1} == {0}
    assert {s.recompute for s in found} == {True, False}


def test_nothing_fits() -> None:
    query = chain_query(ChainCosts(state=500e9), memory=150e9, heads=1)
    with pytest.raises(ConfigError, match="galvatron: nothing feasible .* closest was"):
        Galvatron().plan(query)


@settings(max_examples=25, deadline=None)
@given(
    memory_mb=st.integers(100, 700),
    state=st.sampled_from((50, 100)),
    kept=st.sampled_from((5, 30)),
    forward_s=st.tuples(*[st.integers(1, 4).map(float)] * 4),
    bandwidth=st.sampled_from((300.0, 1e5)),
)
def test_mixed_stages_are_the_best_of_all_choices(
    memory_mb: int, state: int, kept: int, forward_s: tuple[float, ...], bandwidth: float
) -> None:
    costs = ChainCosts(forward_s=forward_s, state=state * MB, kept=kept * MB, bandwidth=bandwidth)
    pricer = StagePricer(chain_query(costs, memory=memory_mb * MB))
    search = LayerSearch(
        costs=LayerCosts(pricer),
        strategies=[s for s in layer_strategies(pricer, 2, 4) if str(s) in SOME],
        samples=4,
        layers=(4,),
        unit_bytes=MB,
    )
    every = itertools.product(range(len(search.strategies)), repeat=4)
    found = search.mixed()
    plans = [search.plan(choice) for choice in every]
    # whole MB: sizes here are multiples of 1.25 MB, so what is rounded up stays within 4 MB
    clearly = [p for p in plans if p.memory_bytes and p.memory_bytes <= (memory_mb - 4) * MB]
    if found is None:
        assert not clearly
        return
    best = search.plan(found)
    assert best.memory_bytes is not None
    assert best.memory_bytes <= memory_mb * MB
    if clearly:
        assert best.believed_s <= min(p.believed_s for p in clearly) + 1e-9
    fitting = [p for p in plans if p.memory_bytes and p.memory_bytes <= memory_mb * MB]
    assert best.believed_s >= min(p.believed_s for p in fitting) - 1e-9


@settings(max_examples=25, deadline=None)
@given(memory_mb=st.integers(200, 600), state=st.sampled_from((50, 100)))
def test_mixing_layers_never_hurts(memory_mb: int, state: int) -> None:
    query = chain_query(ChainCosts(state=state * MB, bandwidth=500.0), memory=memory_mb * MB)
    uniform, mixed = (kind().plan(query).best for kind in (GalvatronUniform, Galvatron))
    assert mixed.believed_s <= uniform.believed_s
