"""Memory of any stage, from that of equal stages; and the fewest recomputed layers that fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import tiny_cluster, tiny_model

from cona.config import load
from cona.planners import Query, query_of
from cona.planners.layer_times import cheapest_sums, ranges
from cona.planners.stage_memory import stage_memory
from cona.planners.stage_prices import StagePricer
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques, divisors


def query(model: ModelSpec, memory: float | None = None, **techniques: object) -> Query:
    cluster = load(ClusterSpec, "dgx-a100")
    if memory:
        cluster = cluster.model_copy(update={"gpu_memory_gb": memory / 1e9})
    given_techniques = Techniques(**techniques)
    return query_of(model, cluster, 64, preset="improved", mbs_max=32, techniques=given_techniques)


@pytest.mark.parametrize("name", ["gpt3-1.3b", "llama-3.2-1b", "bert-large"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_equal_stages_need_what_the_costs_say(name: str, recompute: str, zero: int) -> None:
    model = load(ModelSpec, name)
    techniques = Techniques(recompute=recompute, zero_stage=zero)
    asked = query(model)
    pieces = stage_memory(asked, 2, 2, 4, techniques)
    for pp, m in itertools.product(divisors(model.num_layers), (1, 3, 8)):
        strategy = Strategy(dp=2, tp=2, pp=pp, mbs=4, gbs=8 * m, techniques=techniques)
        layers = model.num_layers // pp
        for stage in range(pp):
            found = pieces.bytes(model.num_layers, min(pp - stage, m))
            expected = asked.costs.memory(stage, strategy)
            assert found[stage * layers, (stage + 1) * layers] == pytest.approx(expected)


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5])
@pytest.mark.parametrize("is_tied", [True, False])
def test_chains_that_do_not_divide_need_about_as_much(num_layers: int, is_tied: bool) -> None:
    model = tiny_model(num_layers=num_layers, tied_embeddings=is_tied)
    asked = query_of(
        model, tiny_cluster(), 8, preset="improved", mbs_max=8, techniques=Techniques()
    )
    found = stage_memory(asked, 1, 1, 2, Techniques()).bytes(num_layers, 1)
    for pp in divisors(num_layers):
        strategy = Strategy(dp=1, tp=1, pp=pp, mbs=2, gbs=2)
        expected = asked.costs.memory(0, strategy)
        assert found[0, num_layers // pp] == pytest.approx(expected, rel=1e-3)


# --- recomputation ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    limit_gb=st.floats(8, 60),
    in_flight=st.integers(1, 6),
    mbs=st.sampled_from((4, 16)),
)
def test_the_fewest_layers_that_fit_are_recomputed(
    limit_gb: float, in_flight: int, mbs: int
) -> None:
    model = load(ModelSpec, "gpt3-1.3b")
    pricer = StagePricer(query(model, limit_gb * 1e9))
    prices = pricer.prices(2, 1, mbs, in_flight, may_recompute=True, limited=True)
    kept, full = pricer.memory(2, 1, mbs), pricer.memory(2, 1, mbs, full=True)
    forward = pricer.times(1, mbs).forward[0]
    plain = pricer.prices(2, 1, mbs, in_flight, may_recompute=False, limited=False).seconds
    for first, last in ((0, 24), (0, 6), (6, 12), (18, 24)):
        # n recomputed layers keep little, but one is whole while it is computed again.
        needs = [kept.bytes(24, in_flight)[first, last]]
        saved = in_flight * (kept.per_microbatch - full.per_microbatch)
        needs += [needs[0] + full.base - kept.base - n * saved for n in range(1, last - first + 1)]
        fits = [n for n, size in enumerate(needs) if size <= limit_gb * 1e9]
        if not fits:
            assert prices.seconds[first, last] == np.inf
            continue
        assert prices.num_recomputed[first, last] == fits[0]
        assert prices.memory_bytes[first, last] == pytest.approx(needs[fits[0]])
        expected_s = plain[first, last] + fits[0] * forward
        assert prices.seconds[first, last] == pytest.approx(expected_s)


def test_all_layers_recomputed_are_the_technique() -> None:
    model = load(ModelSpec, "gpt3-1.3b")
    full = StagePricer(query(model, recompute="full")).prices(
        1, 1, 8, 2, may_recompute=True, limited=False
    )
    tight = StagePricer(query(model, memory=1e9)).prices(
        1, 1, 8, 2, may_recompute=True, limited=False
    )
    assert tight.num_recomputed[0, 12] == 12
    np.testing.assert_allclose(tight.seconds[0, 12], full.seconds[0, 12])
    np.testing.assert_allclose(tight.memory_bytes[0, 12], full.memory_bytes[0, 12])


@given(values=st.lists(st.floats(0, 9), min_size=1, max_size=6))
def test_sums_over_runs(values: list[float]) -> None:
    array = np.array(values)
    sums, cheapest = ranges(array), cheapest_sums(array)
    for first, last in itertools.combinations(range(len(values) + 1), 2):
        run = values[first:last]
        assert sums[first, last] == pytest.approx(sum(run))
        for n in range(len(run) + 1):
            least = min(sum(some) for some in itertools.combinations(run, n))
            assert cheapest[first, last, n] == pytest.approx(least)
    assert np.isinf(sums[np.tril_indices(len(values) + 1)]).all()
