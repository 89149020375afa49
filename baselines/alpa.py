"""Alpa's inter-operator planner: groups of layers on submeshes, by t_max enumeration.

    T = sum_i t_i + (m - 1) * max_i t_i

For every bound t_max out of the distinct stage times, ascending, a dynamic programme over (stages,
layer, GPUs) minimises sum t_i with t_i <= t_max. A stage takes a power of two GPUs of a node, or
whole nodes, and there any (dp', tp') that divides them. Memory caps the number of stages behind a
stage, since each of them is one more micro-batch that it keeps.

Left out: Alpa's intra-operator pass (an integer programme over operators' shardings), since layers
come with Megatron's sharding here; its operator clustering, since layers are given. As in Alpa,
messages between stages, the gradients' all-reduce and the optimizer take no time, which favours
data parallelism. Alpa is told m; here every m that divides gbs is tried.

Source: Zheng et al., OSDI 2022 (arXiv 2201.12023), sections 5.1 and 5.2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cona.planners import Answer, Query, choose
from cona.planners.stage_menu import ChainPlanner, fastest_plans, submesh_menus
from cona.planners.stage_prices import StagePricer


@dataclass(kw_only=True)
class Alpa(ChainPlanner):
    """Submeshes and stages that minimise one pass plus the bottleneck's other m - 1."""

    name: ClassVar[str] = "alpa"
    summary: ClassVar[str] = "groups of layers on submeshes; leaves out the gradients' all-reduce"
    source: ClassVar[str] = "Alpa (Zheng et al., OSDI 2022)"

    def plan(self, query: Query) -> Answer:
        """Return the fastest plan that fits; raises ConfigError naming the closest."""
        pricer = StagePricer(query)
        return choose(self.name, query, fastest_plans(submesh_menus(pricer, self.max_groups)))
