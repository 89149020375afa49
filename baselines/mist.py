"""Mist's objective: a pipeline with the work that is done once per iteration, where it overlaps.

    T = (m - 1) * max_i t_i + sum_i t_i + max_i (delta_i - sum_{j<i} t_j)

delta_i is what stage i does once per iteration: the gradients' all-reduce and the optimizer's step.
A later stage's delta hides behind the first micro-batch's way to it. The same T is
(m - 1) * max_i t_i + max_i (delta_i + sum_{j>=i} t_j), which a dynamic programme over stages builds
from front to back for every bound on max t_i. A stage takes a submesh, its (dp, tp), and the fewest
recomputed layers with which it fits.

Left out: Mist's integer programme and its Pareto sets (the dynamic programme is exact here), its
ZeRO stage per stage (the techniques fix it), off-loading, and its model of interference between
overlapping kernels, since the engines here do none of these.

Source: Zhu et al., EuroSys 2025 (arXiv 2503.19050)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cona.cost.gpus import Floats
from cona.planners import Answer, Query, choose
from cona.planners.partition import StageOption
from cona.planners.stage_menu import ChainPlanner, fastest_plans, submesh_menus
from cona.planners.stage_prices import StagePricer, StagePrices


@dataclass(kw_only=True)
class Mist(ChainPlanner):
    """Stages that balance micro-batches and the work that is done once per iteration."""

    name: ClassVar[str] = "mist"
    summary: ClassVar[str] = "unequal stages; once-per-iteration work hides behind the pipeline"
    source: ClassVar[str] = "Mist (Zhu et al., EuroSys 2025)"

    def plan(self, query: Query) -> Answer:
        """Return the fastest plan that fits; raises ConfigError naming the closest."""
        pricer = StagePricer(query)

        def charge(
            option: StageOption, mbs: int, prices: StagePrices
        ) -> tuple[Floats, Floats | float]:
            return prices.seconds, once_s(pricer, option)

        menus = submesh_menus(pricer, self.max_groups, may_recompute=True, charge=charge)
        return choose(self.name, query, fastest_plans(menus))


def once_s(pricer: StagePricer, option: StageOption) -> Floats:
    """Return delta of every stage: all-reduce of 16-bit gradients, then the optimizer's step.

    The step is shared by the parameters that a stage holds, and by its replicas where the
    optimizer is sharded.

    Args:
        pricer: prices of the query.
        option: degrees of the stage.
    """
    query, sizes = pricer.query, pricer.params_bytes
    shares = option.dp if query.techniques.zero_stage else 1
    step_s = query.costs.optimizer(option.tp, 1) * sizes / sizes[0, -1] / shares
    return pricer.sync_s(sizes / option.tp, option.dp, option.tp) + step_s
