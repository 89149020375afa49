"""Every stage that a planner may choose, with its price, and the plans that partitions become.

Source: baselines.md, Offline planners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cona.cost.gpus import Floats
from cona.cost.model_costs import checked_sizes
from cona.planners.layer_times import stage_lengths
from cona.planners.partition import Chain, Partition, StageOption
from cona.planners.planner import OfflinePlanner
from cona.planners.plans import Plan, StagePlan
from cona.planners.stage_prices import StagePricer, StagePrices
from cona.planners.submeshes import cuts, submeshes
from cona.strategy import divisors


@dataclass(kw_only=True)
class ChainPlanner(OfflinePlanner):
    """A planner that cuts the chain of layers into stages that may differ."""

    max_groups: int = 32
    """ASSUMED: longer chains move layers in equal groups, to bound the search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_sizes(max_groups=self.max_groups)


class Charge(Protocol):
    """A planner's own rule of what a stage takes."""

    def __call__(
        self, option: StageOption, mbs: int, prices: StagePrices
    ) -> tuple[Floats, Floats | float]:
        """Return seconds per micro-batch and once per iteration, [L+1, L+1] each."""


def per_microbatch(
    option: StageOption, mbs: int, prices: StagePrices
) -> tuple[Floats, Floats | float]:
    """Charge forward and backward passes of one micro-batch, and nothing once per iteration."""
    return prices.seconds, 0.0


@dataclass(kw_only=True)
class StageMenu:
    """Stages of one query at one number of micro-batches."""

    pricer: StagePricer
    """Prices of layers and memory."""
    options: Sequence[StageOption]
    """Degrees that a stage may have."""
    mbs: Sequence[int]
    """Samples of one replica's micro-batch, by option."""
    num_microbatches: Sequence[int]
    """Micro-batches that one replica runs per iteration, by option."""
    cuts: Sequence[int]
    """Layers before which the chain may be cut, its two ends included."""
    max_weight: int
    """Largest weight of a pipeline."""
    may_recompute: bool = False
    """Whether layers may be recomputed beyond what the techniques say."""
    charge: Charge = per_microbatch
    """What a stage takes."""
    _cache: dict[tuple[int, int, bool], StagePrices] = field(default_factory=dict, repr=False)
    _charges: dict[tuple[int, int], tuple[Floats, Floats | float]] = field(
        default_factory=dict, repr=False
    )

    @property
    def partition(self) -> Partition:
        """The question which stages to take."""
        return self._partition(self.prices)

    def prices(self, index: int, to_come: int) -> tuple[Floats, Floats | float]:
        """Return what stages cost with that much weight to come, [cuts, cuts] each."""
        in_flight = self.in_flight(index, to_come)
        if (index, in_flight) not in self._charges:
            prices = self._stages(index, in_flight)
            seconds, once = self.charge(self.options[index], self.mbs[index], prices)
            once = once if isinstance(once, float) else self._cut(once)
            self._charges[index, in_flight] = self._cut(seconds), once
        return self._charges[index, in_flight]

    def in_flight(self, index: int, to_come: int) -> int:
        """Return how many micro-batches a stage keeps: one for each stage to come, itself too."""
        return min(-(-to_come // self.options[index].weight), self.num_microbatches[index])

    def stages(self, chain: Chain, *, limited: bool = True) -> tuple[StagePlan, ...]:
        """Return the stages of a partition.

        Args:
            chain: what was found.
            limited: whether all of its stages fit.
        """
        found = []
        for step in chain.steps:
            option = self.options[step.option]
            in_flight = self.in_flight(step.option, step.to_come)
            prices = self._stages(step.option, in_flight, limited=limited)
            first, last = self.cuts[step.first], self.cuts[step.last]
            found.append(self.pricer.stage_plan(first, last, option.dp, option.tp, prices))
        return tuple(found)

    def least_memory(self) -> tuple[StagePlan, ...] | None:
        """Return the stages whose fullest GPU is least full, fit or not; None: no partition."""
        chain = self._partition(self._memory).best("bottleneck")
        return self.stages(chain, limited=False) if chain else None

    def _memory(self, index: int, to_come: int) -> tuple[Floats, float]:
        in_flight = self.in_flight(index, to_come)
        sizes = self._stages(index, in_flight, limited=False).memory_bytes
        is_stage = stage_lengths(self.pricer.num_layers) > 0
        return self._cut(np.where(is_stage, sizes, np.inf)), 0.0

    def _stages(self, index: int, in_flight: int, *, limited: bool = True) -> StagePrices:
        key = index, in_flight, limited
        if key not in self._cache:
            option = self.options[index]
            self._cache[key] = self.pricer.prices(
                option.dp,
                option.tp,
                self.mbs[index],
                in_flight,
                may_recompute=self.may_recompute,
                limited=limited,
            )
        return self._cache[key]

    def _cut(self, values: Floats) -> Floats:
        return values[np.ix_(self.cuts, self.cuts)]

    def _partition(self, prices: Callable[[int, int], tuple[Floats, Floats | float]]) -> Partition:
        return Partition(
            options=self.options,
            prices=prices,
            num_cuts=len(self.cuts),
            num_gpus=self.pricer.num_gpus,
            max_weight=self.max_weight,
        )


def submesh_menus(
    pricer: StagePricer,
    max_groups: int,
    *,
    may_recompute: bool = False,
    charge: Charge = per_microbatch,
) -> list[StageMenu]:
    """Return the menu of every number of micro-batches m that divides gbs, largest m first.

    A micro-batch of gbs/m samples is split over a stage's replicas, whatever their number; stages
    are on submeshes.

    Args:
        pricer: prices of layers and memory.
        max_groups: most groups that layers move in.
        may_recompute: whether layers may be recomputed beyond what the techniques say.
        charge: what a stage takes.
    """
    query, places = pricer.query, cuts(pricer.num_layers, max_groups)
    menus = []
    for samples in divisors(query.gbs):
        options = [
            StageOption(dp=size // tp, tp=tp)
            for size in submeshes(pricer.num_gpus, query.gpus_per_node)
            for tp in pricer.tps
            if size % tp == 0 and samples % (size // tp) == 0
        ]
        options = [o for o in options if query.allows(o.tp, samples // o.dp)]
        menu = StageMenu(
            pricer=pricer,
            options=options,
            mbs=[samples // o.dp for o in options],
            num_microbatches=[query.gbs // samples] * len(options),
            cuts=places,
            max_weight=min(len(places) - 1, pricer.num_gpus),
            may_recompute=may_recompute,
            charge=charge,
        )
        if options:
            menus.append(menu)
    return menus


def fastest_plans(menus: Iterable[StageMenu]) -> list[Plan]:
    """Return the pipelines that were evaluated; the fastest of all is among them.

    Where none fits, they are the ones that need the least memory.
    """
    plans: list[Plan] = []
    menus, fastest_s = list(menus), math.inf
    for menu in menus:
        found = menu.partition.by_bottleneck(menu.num_microbatches[0], at_most_s=fastest_s)
        for time_s, chain in found:
            plans.append(_plan(menu, menu.stages(chain), time_s))
            fastest_s = min(fastest_s, time_s)
    return plans or closest_plans(menus)


def closest_plans(menus: Iterable[StageMenu]) -> list[Plan]:
    """Return the plan with the least memory of every menu, for the error that nothing fits."""
    found = [(menu, menu.least_memory()) for menu in menus]
    return [_plan(menu, stages, math.inf) for menu, stages in found if stages]


def _plan(menu: StageMenu, stages: tuple[StagePlan, ...], time_s: float) -> Plan:
    query = menu.pricer.query
    degrees = [(option.dp, option.tp) for option in menu.options]
    mbs = menu.mbs[degrees.index((stages[0].dp, stages[0].tp))]
    return Plan(stages=stages, mbs=mbs, gbs=query.gbs, believed_s=time_s)
