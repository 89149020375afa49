"""Aceso's moves on four layers, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from chain_costs import ChainCosts, chain_query, shape
from chain_plans import chains
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.aceso import Aceso, Search, grid, moves
from cona.errors import ConfigError
from cona.planners import Query
from cona.planners.bottlenecks import Config, Configs, Load
from cona.planners.stage_prices import StagePricer

TWO = ChainCosts(head_s=6.0, state=100)
"""The head takes as long as two layers."""


def configs(query: Query, num_stages: int) -> Configs:
    return Configs(StagePricer(query), num_stages)


def test_a_layer_moves_out_of_the_slowest_stage() -> None:
    # Even: 6 and 12 s, T = 18 + 3 * 12; one layer moved: 9 and 9 s, T = 18 + 3 * 9.
    query = chain_query(TWO, memory=350, heads=1)
    found = Aceso(grid=False).plan(query)
    assert shape(found.best) == [(3, 1, 1), (1, 1, 1)]
    assert found.best.believed_s == pytest.approx(45)
    times = [plan.believed_s for plan in found.evaluated if len(plan.stages) == 2]
    assert times[:2] == pytest.approx([54, 45])


def test_the_grid_is_what_megatron_could_run() -> None:
    query = chain_query(ChainCosts(), num_gpus=4, gbs=8)
    found = list(grid(configs(query, 2)))
    assert {config.layers for config in found} == {(2, 2)}
    assert {config.tps for config in found} == {(1, 1), (2, 2)}
    # dp 2 needs an even number of samples, dp 1 takes any divisor of 8.
    assert sorted(c.samples for c in found if c.tps == (1, 1)) == [2, 4, 8]
    assert sorted(c.samples for c in found if c.tps == (2, 2)) == [1, 2, 4, 8]


def test_memory_comes_before_time() -> None:
    # The first stage keeps two micro-batches and does not fit; the last one is slower.
    query = chain_query(ChainCosts(state=20, kept=40), memory=150, heads=1)
    prices = configs(query, 2)
    config = Config(layers=(3, 1), tps=(1, 1), samples=2)
    loads = [
        Load(compute_s=1.0, exchange_s=0.0, memory_bytes=200),
        Load(compute_s=9.0, exchange_s=0.0, memory_bytes=10),
    ]
    assert prices.bottlenecks(loads) == [0, 1]
    assert prices.score(config, loads) > prices.score(config, [loads[1], loads[1]])
    fits = [Load(compute_s=x.compute_s, exchange_s=0.0, memory_bytes=1) for x in loads]
    assert prices.bottlenecks(fits) == [1, 0]


def test_moves_relieve_the_scarcest_resource_first() -> None:
    query = chain_query(ChainCosts(), num_gpus=4, gbs=8)
    prices = configs(query, 2)
    config = Config(layers=(2, 2), tps=(2, 2), samples=2)
    out = Config(layers=(3, 1), tps=(2, 2), samples=2)
    more_dp = Config(layers=(2, 2), tps=(2, 1), samples=2)
    larger = Config(layers=(2, 2), tps=(2, 2), samples=4)
    smaller = Config(layers=(2, 2), tps=(2, 2), samples=1)
    first = Load(compute_s=1.0, exchange_s=1.0, memory_bytes=1.0)

    def after(**scarce: float) -> list[Config]:
        taken = {"compute_s": 1.1, "exchange_s": 1.0, "memory_bytes": 1.0, **scarce}
        return moves(prices, config, 1, [first, Load(**taken)])

    assert after(compute_s=9.0) == [out, more_dp, larger, smaller]
    assert after(exchange_s=9.0)[0] == more_dp
    assert after(memory_bytes=9.0)[:2] == [out, smaller]


@dataclass(frozen=True, kw_only=True)
class Rugged(ChainCosts):
    """tp 2 is slower than tp 1, and tp 4 by far the fastest."""

    def layer_time(self, layer: int, tp: int, mbs: int, part: str) -> float:
        factor = {1: 1.0, 2: 3.0, 4: 0.5}[tp]
        return factor * super().layer_time(layer, tp, mbs, part)


def test_moves_are_chained_over_worse_configurations() -> None:
    query = chain_query(Rugged(), num_gpus=4, gbs=4)
    stuck = Search(configs=configs(query, 1), max_hops=1, left=100)
    stuck.run()
    assert {config.tps for config in stuck.seen} == {(1,), (2,)}
    chained = Search(configs=configs(query, 1), max_hops=2, left=100)
    chained.run()
    assert (4,) in {config.tps for config in chained.seen}


def test_a_search_ends_with_its_budget() -> None:
    query = chain_query(Rugged(), num_gpus=4, gbs=4)
    search = Search(configs=configs(query, 1), max_hops=7, left=3)
    search.run()
    assert len(search.seen) == 4  # the first one is free


def test_no_all_reduce_and_no_optimizer() -> None:
    costs = ChainCosts(bandwidth=1.0, optimizer_s=1e6)
    best = Aceso().plan(chain_query(costs, heads=1)).best
    assert shape(best) == [(4, 2, 1)]
    assert best.believed_s == pytest.approx(27)


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match="aceso: nothing feasible .* closest was dp1-tp1-pp2"):
        Aceso().plan(chain_query(ChainCosts(state=100e9), memory=150e9, heads=1))


@settings(max_examples=25, deadline=None)
@given(costs=chains, num_gpus=st.sampled_from((2, 4)), memory=st.sampled_from((60.0, 1e9)))
def test_every_plan_states_its_own_time(costs: ChainCosts, num_gpus: int, memory: float) -> None:
    query = chain_query(costs, num_gpus=num_gpus, memory=memory)
    found = Aceso().plan(query)
    for plan in found.evaluated:
        times = [stage.seconds or 0.0 for stage in plan.stages]
        expected = (plan.num_microbatches - 1) * max(times) + sum(times)
        assert plan.believed_s == pytest.approx(expected)
        assert plan.num_gpus == num_gpus
    fitting = [plan.believed_s for plan in found.evaluated if query.fits(plan)]
    assert found.best.believed_s == min(fitting)
    # The grid is part of it, and no configuration is evaluated twice.
    assert len(set(map(repr, found.evaluated))) == len(found.evaluated)
