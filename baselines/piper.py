"""Piper: stages that minimise the steady-state time per micro-batch.

    TPS = max_i ( compute_i / d_i + comm_i + 4 * (d_i - 1) * w_i / (d_i * N * bandwidth) )

d_i replicas of a stage take turns with micro-batches, so each has d_i times as long. comm is
what the stage receives and sends per micro-batch; w its weights on one GPU; N = gbs/mbs the
micro-batches of an iteration, which share one exchange of gradients. T = N * TPS has no term for
filling the pipeline, since Piper plans for schedules without a flush.

A dynamic programme over (degrees to come, layers, GPUs) is exact. A stage with s = d_i + (degrees
of data parallelism after it) keeps ceil(s/d_i) micro-batches. Where it does not fit, a knapsack
says which layers are computed again; all layers need equal memory here, so the cheapest go first.

Left out: general graphs (a language model is a chain) and several tensor-parallel variants of a
layer (there is one, Megatron's). Piper is told mbs; here every mbs that divides gbs is tried.

Source: Tarnawski et al., NeurIPS 2021
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cona.cost.gpus import Floats
from cona.planners import Answer, Plan, Query, choose
from cona.planners.partition import StageOption
from cona.planners.stage_menu import ChainPlanner, StageMenu, closest_plans
from cona.planners.stage_prices import StagePricer, StagePrices
from cona.planners.submeshes import cuts, smallest_stage
from cona.strategy import divisors


@dataclass(kw_only=True)
class Piper(ChainPlanner):
    """Stages with their own data and tensor parallelism that minimise the slowest one."""

    name: ClassVar[str] = "piper"
    summary: ClassVar[str] = "unequal stages by steady-state throughput: no pipeline fill"
    source: ClassVar[str] = "Piper (Tarnawski et al., NeurIPS 2021)"

    def plan(self, query: Query) -> Answer:
        """Return the plan with the least slowest stage; raises ConfigError naming the closest."""
        menus = list(self.menus(query))
        plans = [plan for menu in menus if (plan := fastest(menu))]
        return choose(self.name, query, plans or closest_plans(menus))

    def menus(self, query: Query) -> Iterator[StageMenu]:
        """Yield the stages of every micro-batch: d replicas of tp GPUs that take turns."""
        pricer, gbs = StagePricer(query), query.gbs
        places = cuts(pricer.num_layers, self.max_groups)
        for mbs in divisors(gbs):
            tps = [tp for tp in pricer.tps if query.allows(tp, mbs)]
            options = [
                StageOption(dp=dp, tp=tp, weight=dp)
                for dp in divisors(gbs // mbs)
                for tp in tps
                if smallest_stage(pricer.num_gpus) <= dp * tp <= pricer.num_gpus
            ]
            if options:
                yield StageMenu(
                    pricer=pricer,
                    options=options,
                    mbs=[mbs] * len(options),
                    num_microbatches=[gbs // mbs // option.dp for option in options],
                    cuts=places,
                    max_weight=pricer.num_gpus,
                    may_recompute=True,
                    charge=Charge(pricer),
                )


@dataclass(frozen=True)
class Charge:
    """Time per micro-batch of a stage, by the formula above."""

    pricer: StagePricer

    def __call__(
        self, option: StageOption, mbs: int, prices: StagePrices
    ) -> tuple[Floats, Floats | float]:
        """Return the seconds of every stage; nothing is paid once per iteration."""
        pricer, dp = self.pricer, option.dp
        weights = pricer.params_bytes / option.tp
        num_microbatches = pricer.query.gbs // mbs
        bandwidth = pricer.bytes_per_s(pricer.num_gpus)
        sync_s = 4 * (dp - 1) * weights / (dp * num_microbatches * bandwidth)
        return prices.seconds / dp + self.comm_s(mbs) + sync_s, 0.0

    def comm_s(self, mbs: int) -> Floats:
        """Return the seconds that every stage receives and sends, shape [L+1, L+1].

        An activation goes forward and its gradient back at every cut that has two sides.
        """
        both_ways_s = 2 * self.pricer.query.costs.p2p(self.pricer.boundary_bytes(mbs))
        seconds = np.full((self.pricer.num_layers + 1,) * 2, 2 * both_ways_s)
        seconds[0, :] -= both_ways_s
        seconds[:, -1] -= both_ways_s
        return seconds


def fastest(menu: StageMenu) -> Plan | None:
    """Return the pipeline whose slowest stage is fastest; None: none fits."""
    chain = menu.partition.best("bottleneck")
    if chain is None:
        return None
    gbs, mbs = menu.pricer.query.gbs, menu.mbs[0]
    time_s = gbs // mbs * chain.cost
    return Plan(stages=menu.stages(chain), mbs=mbs, gbs=gbs, believed_s=time_s)
