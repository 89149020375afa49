"""Galvatron: every layer of a stage has its own strategy, within a memory budget.

    T = sum_i t_i + (m - 1) * max_i t_i + max_i once_i

t_i sums a stage's layers and the re-layouts between layers of unlike tp, per micro-batch; once_i
is what its exchange of gradients adds to the last backward pass (see `LayerCosts`).
For every number of stages pp and of micro-batches m, the layers are spread evenly, and a knapsack
over (layer, memory, strategy) minimises m * t_i + once_i of each stage. Strategies are {tp x dp x
(ddp | zero2 | zero3) x recompute}, degrees powers of two.

`galvatron-u` gives all layers of a plan one strategy.

Left out: the outer loop over gbs, which the policy's -gbs<N> or the ladder fixes (at one gbs the
largest gbs/T is the smallest T); decision-tree pruning, since the tree is small; sequence and
context parallelism of Galvatron-2. Galvatron-BMW goes from stages of balanced memory to stages of
balanced time; `-balance=on` starts from even stages instead. Memory is the costs', in whole MB per
layer as in the original.

Source: Miao et al., PVLDB 16(3), 2022 (VLDB 2023); Wang et al., TKDE 2024 (BMW)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from cona.cost.model_costs import checked_sizes
from cona.planners import Answer, OfflinePlanner, Plan, Query, choose
from cona.planners.layer_search import LayerSearch
from cona.planners.layer_strategies import LayerCosts, LayerStrategy
from cona.planners.stage_prices import StagePricer
from cona.strategy import divisors

Pick = Callable[[LayerSearch], Plan | None]
"""A way to choose every layer's strategy."""


@dataclass(kw_only=True)
class GalvatronUniform(OfflinePlanner):
    """One strategy for all layers, by Galvatron's costs."""

    name: ClassVar[str] = "galvatron-u"
    summary: ClassVar[str] = "Galvatron's costs, one strategy for all layers"
    source: ClassVar[str] = "Galvatron (Miao et al., VLDB 2023)"

    mixes: ClassVar[bool] = False
    """Whether layers of a stage may differ."""
    memory_unit_mb: int = 1
    """Resolution of a layer's memory in the knapsack, MB."""
    balance: bool = False
    """Let layers leave the slowest stage while that is faster, much as Galvatron-BMW does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_sizes(memory_unit_mb=self.memory_unit_mb)

    def plan(self, query: Query) -> Answer:
        """Return the fastest plan that fits; raises ConfigError naming the closest."""
        pricer = StagePricer(query)
        costs = LayerCosts(pricer)
        plans = [plan for search in self._searches(costs) for plan in self._plans(search)]
        return choose(self.name, query, plans)

    def _searches(self, costs: LayerCosts) -> Iterator[LayerSearch]:
        """Every number of stages, a power of two, with every micro-batch that divides gbs."""
        pricer = costs.pricer
        most = min(pricer.num_gpus, pricer.num_layers)
        for pp in (2**i for i in range(most.bit_length())):
            for samples in divisors(pricer.query.gbs) if pricer.num_gpus % pp == 0 else ():
                strategies = layer_strategies(pricer, pricer.num_gpus // pp, samples)
                if strategies:
                    yield LayerSearch(
                        costs=costs,
                        strategies=strategies,
                        samples=samples,
                        layers=even_layers(pricer.num_layers, pp),
                        unit_bytes=self.memory_unit_mb * 1e6,
                    )

    def _plans(self, search: LayerSearch) -> Iterator[Plan]:
        for index in range(len(search.strategies)):
            yield from self._balanced(search, partial(_uniform, index))
        if self.mixes:
            yield from self._balanced(search, _mixed)

    def _balanced(self, search: LayerSearch, pick: Pick) -> Iterator[Plan]:
        """The plan of even stages, then faster ones with layers moved out of the slowest."""
        plan = pick(search)
        while plan is not None:
            yield plan
            others = map(pick, _neighbours(search, plan)) if self.balance else ()
            faster = [other for other in others if other and other.believed_s < plan.believed_s]
            plan = min(faster, key=lambda other: other.believed_s, default=None)


def _uniform(index: int, search: LayerSearch) -> Plan:
    return search.plan(search.uniform(index))


def _mixed(search: LayerSearch) -> Plan | None:
    """The best plan whose layers differ; None: none fits, or all layers are alike."""
    choice = search.mixed()
    return search.plan(choice) if choice and len(set(choice)) > 1 else None


def _neighbours(search: LayerSearch, plan: Plan) -> Iterator[LayerSearch]:
    """Searches with one layer of the slowest stage on the stage before or after it."""
    layers = search.layers
    slowest = max(range(len(layers)), key=lambda stage: plan.stages[stage].seconds or 0.0)
    for other in (slowest - 1, slowest + 1):
        if 0 <= other < len(layers) and layers[slowest] > 1:
            moved = [n + (i == other) - (i == slowest) for i, n in enumerate(layers)]
            yield replace(search, layers=tuple(moved))


@dataclass(kw_only=True)
class Galvatron(GalvatronUniform):
    """A strategy for every layer; plans with one for all are among them."""

    name: ClassVar[str] = "galvatron"
    summary: ClassVar[str] = "a strategy per layer: tp, dp, ZeRO and recompute, by knapsack"
    mixes: ClassVar[bool] = True


def layer_strategies(pricer: StagePricer, num_gpus: int, samples: int) -> list[LayerStrategy]:
    """Return every strategy of a layer on a stage's GPUs that the model and the batch allow.

    Args:
        pricer: the query.
        num_gpus: GPUs of the stage.
        samples: of a micro-batch over all replicas.
    """
    given = pricer.query.techniques
    again = (True,) if given.recompute == "full" else (False, True)
    found = []
    for tp in (tp for tp in pricer.tps if tp & (tp - 1) == 0 and num_gpus % tp == 0):
        dp = num_gpus // tp
        if samples % dp == 0 and pricer.query.allows(tp, samples // dp):
            sharded = sorted({given.zero_stage, 2, 3}) if dp > 1 else [given.zero_stage]
            found += [
                LayerStrategy(tp=tp, dp=dp, zero_stage=zero, recompute=recompute)
                for zero in sharded
                for recompute in again
            ]
    return found


def even_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers of every stage: equal shares, and the last takes what is left over too."""
    share = num_layers // num_stages
    return (*(share,) * (num_stages - 1), num_layers - share * (num_stages - 1))
