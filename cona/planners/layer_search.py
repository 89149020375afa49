"""The pipelines of Galvatron at one number of stages and one micro-batch.

Source: Miao et al., PVLDB 16(3), 2022 (VLDB 2023), section 3.3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cona.cost.gpus import Floats
from cona.planners.knapsack import Knapsack
from cona.planners.layer_strategies import LayerCosts, LayerStrategy, LayerTable
from cona.planners.plans import Plan, StagePlan
from cona.strategy import Recompute

Choice = tuple[int, ...]
"""Index of the strategy of every layer of the model."""


@dataclass(frozen=True, kw_only=True)
class LayerSearch:
    """Which strategy each layer of each stage takes."""

    costs: LayerCosts
    """Times and memory of layers."""
    strategies: Sequence[LayerStrategy]
    """What a layer may take; all use up a stage's GPUs."""
    samples: int
    """Samples of a micro-batch over all replicas."""
    layers: Sequence[int]
    """Layers of every stage."""
    unit_bytes: float
    """Resolution of the knapsack's memory."""

    @property
    def num_microbatches(self) -> int:
        """m: micro-batches per iteration."""
        return self.costs.pricer.query.gbs // self.samples

    @cached_property
    def _table(self) -> LayerTable:
        return self.costs.table(self.strategies, self.samples)

    @cached_property
    def _tps(self) -> tuple[int, ...]:
        return tuple(sorted({strategy.tp for strategy in self.strategies}))

    @cached_property
    def _groups(self) -> tuple[int, ...]:
        return tuple(self._tps.index(strategy.tp) for strategy in self.strategies)

    @cached_property
    def _relayout_s(self) -> Floats:
        num_gpus = self.strategies[0].dp * self.strategies[0].tp
        return self.costs.relayout_s(self._tps, self.samples, num_gpus)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(sum(self.layers[:stage]) for stage in range(len(self.layers)))

    def _range(self, stage: int) -> slice:
        return slice(self._starts[stage], self._starts[stage] + self.layers[stage])

    @cached_property
    def _bytes(self) -> tuple[tuple[Floats, Floats], ...]:
        """By stage: bytes of layers with the ends they stand for, [layers, strategies]; base."""
        return tuple(self._stage_bytes(stage) for stage in range(len(self.layers)))

    def _stage_bytes(self, stage: int) -> tuple[Floats, Floats]:
        num_stages = len(self.layers)
        in_flight = min(num_stages - stage, self.num_microbatches)
        found = [self.costs.bytes(s, self.samples, in_flight) for s in self.strategies]
        layer, first, last, alone, base = np.array(found).T
        sizes = np.tile(layer, (self.layers[stage], 1))
        sizes[0] += first if stage == 0 else 0.0
        sizes[-1] += last if stage == num_stages - 1 else 0.0
        sizes[0] += alone if num_stages == 1 else 0.0
        return sizes, base

    def uniform(self, index: int) -> Choice:
        """Return the choice of one strategy for all layers."""
        return (index,) * sum(self.layers)

    def mixed(self) -> Choice | None:
        """Return the choice with the least time in every stage; None: one stage does not fit.

        The budget of a stage leaves room for the largest working buffers of any strategy.
        """
        chosen: list[int] = []
        for stage in range(len(self.layers)):
            sizes, base = self._bytes[stage]
            room = self.costs.pricer.query.gpu_memory_bytes - base.max()
            knapsack = Knapsack(
                seconds=self._stage_s(stage),
                units=np.maximum(np.ceil(sizes / self.unit_bytes), 0).astype(np.int64),
                groups=self._groups,
                relayout_s=self.num_microbatches * self._relayout_s,
            )
            best = knapsack.best(int(room // self.unit_bytes))
            if best is None:
                return None
            chosen += best
        return tuple(chosen)

    def _stage_s(self, stage: int) -> Floats:
        """Seconds per iteration of a stage's layers under every strategy."""
        rows = self._range(stage)
        return self.num_microbatches * self._table.microbatch_s[rows] + self._table.once_s[rows]

    def plan(self, choice: Choice) -> Plan:
        """Return the pipeline of a choice with its believed time and memory."""
        stages = [self._stage(stage, choice) for stage in range(len(self.layers))]
        times_s = [seconds for _, seconds, _ in stages]
        slowest_s, once_s = max(times_s), max(once for _, _, once in stages)
        plans = tuple(plan for plan, _, _ in stages)
        return Plan(
            stages=plans,
            mbs=self.samples // plans[0].dp,
            gbs=self.costs.pricer.query.gbs,
            believed_s=sum(times_s) + (self.num_microbatches - 1) * slowest_s + once_s,
            notes=self._notes(choice),
        )

    def _stage(self, stage: int, choice: Choice) -> tuple[StagePlan, float, float]:
        """A stage's plan, its seconds per micro-batch, and once per iteration."""
        start, count = self._starts[stage], self.layers[stage]
        rows, chosen = np.arange(start, start + count), np.array(choice[start : start + count])
        groups = np.array(self._groups)[chosen]
        moves_s = self._relayout_s[groups[:-1], groups[1:]].sum()
        seconds = float(self._table.microbatch_s[rows, chosen].sum() + moves_s)
        sizes, base = self._bytes[stage]
        memory = float(sizes[np.arange(count), chosen].sum() + base[chosen].max())
        plan = self._stage_plan(start, [self.strategies[i] for i in chosen], seconds, memory)
        return plan, seconds, float(self._table.once_s[rows, chosen].sum())

    def _stage_plan(
        self, start: int, strategies: Sequence[LayerStrategy], seconds: float, memory: float
    ) -> StagePlan:
        (dp, tp), _ = Counter((s.dp, s.tp) for s in strategies).most_common(1)[0]
        kept = self.costs.pricer.query.techniques.recompute
        modes: tuple[Recompute, ...] = tuple("full" if s.recompute else kept for s in strategies)
        return StagePlan(
            first_layer=start,
            num_layers=len(strategies),
            dp=dp,
            tp=tp,
            seconds=seconds,
            memory_bytes=memory,
            recompute=modes if len(set(modes)) > 1 else modes[0],
            mixed=_mixed(strategies),
        )

    def _notes(self, choice: Choice) -> str:
        """Which layers shard more than the techniques say: a run cannot do that."""
        given = self.costs.pricer.query.techniques.zero_stage
        stages = Counter(self.strategies[index].zero_stage for index in choice)
        return ", ".join(
            f"ZeRO-{stage} on {count} of {len(choice)} layers"
            for stage, count in sorted(stages.items())
            if stage != given
        )


def _mixed(strategies: Sequence[LayerStrategy]) -> str | None:
    """How a stage's layers are spread over GPUs, in words; None: all alike."""
    degrees = Counter((s.dp, s.tp) for s in strategies)
    if len(degrees) == 1:
        return None
    return ", ".join(
        f"{count} layer{'s' * (count > 1)} dp{dp}-tp{tp}" for (dp, tp), count in degrees.items()
    )
