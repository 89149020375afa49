"""AMP: every (tp, dp, pp, mbs) with a balanced pipeline, priced by a formula without memory.

Li, Wang, Jin, Xing: "AMP: Automatically finding model parallel strategies with heterogeneity
awareness", NeurIPS 2022. With m micro-batches and t_i the seconds of stage i for one of them,

    T = (m-1) max t_i + sum_j c_j + sum t_i + max_i 2(dp-1)/(dp B) P_i,

c_j = b s h / B at the boundary behind stage j, B the slowest link that is used, in fp32 elements
per second, P_i the elements of stage i: 12 h^2/tp a layer, h V/tp each for embedding and head.
A layer takes three times its profiled forward pass of one sample, times mbs.

The stages' dynamic programme minimises sum c + (m-1) * max(0, stage - threshold) over all
contiguous sums as thresholds. Its terms telescope to (m-1) * max t_i, and the messages are alike
wherever the cut is, so the one here minimises max t_i. For m = 1 stages are even.

Left out: heterogeneous GPUs, and placements other than consecutive GPUs stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import ClassVar

from cona.cost.measured_costs import embedding_time, smallest_mbs
from cona.planners import Answer, OfflinePlanner, Plan, Query, StagePlan, choose
from cona.planners.chain import (
    LayerChain,
    balanced_cuts,
    bytes_per_s,
    even_cuts,
    first_gpus,
    slowest_link,
)
from cona.strategy import Strategy, divisors

ELEMENT_BYTES = 4
"""AMP counts messages in fp32 elements."""


@dataclass(kw_only=True)
class AMP(OfflinePlanner):
    """Exhaustive over degrees, dynamic programming over stages."""

    name: ClassVar[str] = "amp"
    summary: ClassVar[str] = "all degrees, stages by dynamic programming; knows no memory"
    source: ClassVar[str] = "AMP (Li et al., NeurIPS 2022)"
    variants: ClassVar[tuple[str, ...]] = ("memory=on",)

    memory: bool = False
    """Drop plans whose uniform strategy does not fit by the costs; the original keeps them."""

    def plan(self, query: Query) -> Answer:
        """Return the cheapest plan; raises ConfigError naming the closest where nothing fits."""
        search = _Search(query)
        plans = (search.evaluate(strategy) for strategy in _degrees(query))
        name = f"{self.name}-memory=on" if self.memory else self.name
        return choose(name, query, map(search.with_memory, plans) if self.memory else plans)


def _degrees(query: Query) -> Iterator[Strategy]:
    """tp | GPUs of a node, dp | N/tp, pp = the rest, mbs | gbs/dp; at least a layer per stage."""
    for tp in divisors(query.gpus_per_node):
        if query.num_gpus % tp:
            continue
        for dp in divisors(query.num_gpus // tp):
            pp = query.num_gpus // (tp * dp)
            if query.gbs % dp or pp > query.model.num_layers:
                continue
            for mbs in divisors(query.gbs // dp):
                if query.allows(tp, mbs):
                    yield Strategy(
                        dp=dp, tp=tp, pp=pp, mbs=mbs, gbs=query.gbs, techniques=query.techniques
                    )


class _Search:
    """Prices strategies of one query; stages of equal (tp, pp) are cut once."""

    def __init__(self, query: Query) -> None:
        self.query, self.chain = query, LayerChain(query)
        self.sample_s = cache(self._sample_s)
        self.balanced = cache(lambda tp, pp: balanced_cuts(self.sample_s(tp), pp))

    def _sample_s(self, tp: int) -> tuple[float, ...]:
        """Three profiled forward passes of one sample through every piece, seconds."""
        costs, mbs = self.query.costs, smallest_mbs(self.query.costs)
        layers = [costs.layer_time(i, tp, mbs, "forward") for i in range(self.chain.num_layers)]
        first = embedding_time(costs, tp, mbs, "forward")
        last = costs.head_time(tp, mbs, "forward")
        return tuple(3 * seconds / mbs for seconds in (first, *layers, last))

    def evaluate(self, s: Strategy) -> Plan:
        """Return the plan of a strategy's degrees with its cost."""
        m, is_even = s.num_microbatches, s.num_microbatches == 1
        cuts = even_cuts(self.chain.num_layers, s.pp) if is_even else self.balanced(s.tp, s.pp)
        times = [s.mbs * sum(self.sample_s(s.tp)[a:b]) for a, b in pairwise(cuts)]
        stages = tuple(
            StagePlan(first_layer=first, num_layers=count, dp=s.dp, tp=s.tp, seconds=seconds)
            for (first, count), seconds in zip(self.chain.stages(cuts), times, strict=True)
        )
        pipeline_s = (m - 1) * max(times) + self._messages_s(s) + sum(times)
        believed_s = pipeline_s + self._reduce_s(s, cuts)
        return Plan(stages=stages, mbs=s.mbs, gbs=s.gbs, believed_s=believed_s)

    def _messages_s(self, s: Strategy) -> float:
        """sum_j c_j: the hidden states of a micro-batch over each boundary."""
        elements = s.mbs * self.query.model.seq_length * self.query.model.hidden_size
        first = first_gpus([(s.dp, s.tp)] * s.pp)
        return sum(elements / self._rate(a, b) for a, b in zip(first, first[2:], strict=False))

    def _reduce_s(self, s: Strategy, cuts: Sequence[int]) -> float:
        """Seconds of the slowest stage's all-reduce of gradients."""
        model, first = self.query.model, first_gpus([(s.dp, s.tp)] * s.pp)
        table = model.hidden_size * model.vocab_size / s.tp
        layers = [12 * model.hidden_size**2 / s.tp] * model.num_layers
        elements = (table, *layers, table)
        sums = [sum(elements[a:b]) for a, b in pairwise(cuts)]
        rates = [self._rate(a, b) for a, b in pairwise(first)]
        times = [2 * (s.dp - 1) / s.dp * n / rate for n, rate in zip(sums, rates, strict=True)]
        return max(times)

    def _rate(self, first_gpu: int, end_gpu: int) -> float:
        """fp32 elements per second of the slowest link among consecutive GPUs."""
        return bytes_per_s(slowest_link(self.query, first_gpu, end_gpu)) / ELEMENT_BYTES

    def with_memory(self, plan: Plan) -> Plan:
        """Return the plan with the memory of its uniform strategy, by the costs.

        Stages that cannot have as many layers each are no strategy, so nothing tells their memory:
        they count as too large.
        """
        uniform = plan.strategy(self.query.techniques)
        if uniform is None or self.query.space.why_not(uniform):
            return replace(
                plan, stages=tuple(replace(s, memory_bytes=math.inf) for s in plan.stages)
            )
        stages = tuple(
            replace(stage, memory_bytes=self.query.costs.memory(i, uniform))
            for i, stage in enumerate(plan.stages)
        )
        return replace(plan, stages=stages)
