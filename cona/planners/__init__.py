"""Offline planners: what all of them share; each planner itself is a file under ``baselines/``.

- planner, query, plans, report: the question, the answer, and what is true of it
- chain, groupings: pieces of a model and groups of GPUs (AMP, Metis)
- stage_menu, stage_prices, stage_memory, layer_times, submeshes, partition: unequal stages
  (Alpa, Piper, Mist)
- bottlenecks: Aceso's configurations
- layer_strategies, layer_search, knapsack: Galvatron's strategy per layer

Source: baselines.md, Offline planners.
"""

from cona.planners.planner import OfflinePlanner, Planner
from cona.planners.plans import Plan, StagePlan, uniform_plan
from cona.planners.query import Answer, Query, choose, query_of

__all__ = [
    "Answer",
    "OfflinePlanner",
    "Plan",
    "Planner",
    "Query",
    "StagePlan",
    "choose",
    "query_of",
    "uniform_plan",
]
