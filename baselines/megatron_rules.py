"""Megatron's rules of thumb: as little model parallelism as fits, tensor parallel inside a node.

Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC 2021. The model-parallel size tp*pp is the smallest that fits in memory; tp comes
first, up to the GPUs of a node, then pp across nodes (takeaways 1 and 2); the rest is dp; and mbs
minimises

    T = (b'/b + p - 1) (t_f(b) + t_b(b)),   b' = gbs/dp,

their equation for the optimal micro-batch (takeaway 3), with the slowest stage's passes. Layers are
computed again if they do not fit otherwise, which is one more forward pass.

Left out: interleaved stages; the all-reduce of gradients and the optimizer, as in their equation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from cona.cost.measured_costs import embedding_time
from cona.planners import Answer, OfflinePlanner, Plan, Query, choose, uniform_plan
from cona.strategy import Strategy


@dataclass(kw_only=True)
class MegatronRules(OfflinePlanner):
    """The smallest model-parallel size that fits, then the best micro-batch."""

    name: ClassVar[str] = "megatron-rules"
    summary: ClassVar[str] = "smallest tp*pp that fits, tp inside a node; best micro-batch"
    source: ClassVar[str] = "Megatron-LM (Narayanan et al., SC 2021)"

    def plan(self, query: Query) -> Answer:
        """Return the plan by the rules; raises ConfigError naming the closest if none fits."""
        evaluated: list[Plan] = []
        for strategies in _sizes(query):
            plans = [_priced(query, strategy) for strategy in strategies]
            evaluated += plans
            if any(query.fits(plan) for plan in plans):
                break
        return choose(self.name, query, evaluated)


def _sizes(query: Query) -> Iterator[list[Strategy]]:
    """Strategies of every model-parallel size, ascending, tp as large as a node allows."""
    usable = [s for s in query.strategies if query.gpus_per_node % s.tp == 0]
    for size in sorted({s.tp * s.pp for s in usable}):
        same = [s for s in usable if s.tp * s.pp == size]
        largest = max(s.tp for s in same)
        yield [s for s in same if s.tp == largest]


def _priced(query: Query, strategy: Strategy) -> Plan:
    """The plan of a strategy; it recomputes if it is too large otherwise."""
    plan = _plan(query, strategy)
    if query.fits(plan) or strategy.techniques.recompute == "full":
        return plan
    techniques = replace(strategy.techniques, recompute="full")
    return _plan(query, replace(strategy, techniques=techniques))


def _plan(query: Query, strategy: Strategy) -> Plan:
    seconds = stage_seconds(query, strategy)
    memory = [query.costs.memory(stage, strategy) for stage in range(strategy.pp)]
    believed_s = (strategy.num_microbatches + strategy.pp - 1) * max(seconds)
    return uniform_plan(
        strategy,
        query.model.num_layers,
        believed_s=believed_s,
        seconds=seconds,
        memory_bytes=memory,
    )


def stage_seconds(query: Query, strategy: Strategy) -> list[float]:
    """Return forward and backward seconds of each stage for one micro-batch.

    Args:
        query: prices the layers.
        strategy: degrees; full recomputation adds a forward pass of the layers, selective none.
    """
    costs, tp, mbs = query.costs, strategy.tp, strategy.mbs
    count = query.model.num_layers // strategy.pp
    is_again = strategy.techniques.recompute == "full"
    layers = [
        costs.layer_time(i, tp, mbs, "both") + is_again * costs.layer_time(i, tp, mbs, "forward")
        for i in range(query.model.num_layers)
    ]
    stages = [sum(layers[i : i + count]) for i in range(0, len(layers), count)]
    stages[0] += embedding_time(costs, tp, mbs, "both")
    stages[-1] += costs.head_time(tp, mbs, "both")
    return stages
