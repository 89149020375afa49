"""Plans of offline planners: pipeline stages that may differ, and the uniform strategy they become.

Source: baselines.md, Offline planners; architecture.md, Contracts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from cona.errors import ConfigError
from cona.strategy import Recompute, Strategy, StrategySpace, Techniques

NEUTRAL = Techniques()
"""No technique beside the degrees."""

_RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)  # from nothing to everything


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One pipeline stage of a plan; the first also holds the embedding, the last the head."""

    first_layer: int
    """Index of its first transformer layer, from 0."""
    num_layers: int
    """Transformer layers, from ``first_layer`` on; 0 where it holds an end of the model only."""
    dp: int
    """Data-parallel degree inside the stage."""
    tp: int
    """Tensor-parallel degree inside the stage."""
    seconds: float | None = None
    """Believed forward and backward seconds of one micro-batch; None: not stated."""
    memory_bytes: float | None = None
    """Bytes per GPU that the planner compares with a GPU's; None: it has no memory model."""
    recompute: Recompute | tuple[Recompute, ...] = "none"
    """What is computed again in the backward pass: for the whole stage, or layer by layer."""
    mixed: str | None = None
    """What else differs between the stage's layers, in words; None: nothing."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the stage."""
        return self.dp * self.tp

    def __str__(self) -> str:
        return f"{self.num_layers}L:dp{self.dp}-tp{self.tp}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a planner evaluates and returns; stages may differ."""

    stages: tuple[StagePlan, ...]
    """Pipeline stages, first to last; at least one."""
    mbs: int
    """Micro-batch of the first stage: samples that one of its replicas processes at once."""
    gbs: int
    """Global batch size, samples."""
    believed_s: float
    """Seconds per iteration by the planner's own formula."""
    notes: str = ""
    """What a reader must know beside the numbers."""

    @property
    def num_gpus(self) -> int:
        """GPUs of all stages."""
        return sum(stage.num_gpus for stage in self.stages)

    @property
    def num_microbatches(self) -> int:
        """m: micro-batches per pipeline and iteration."""
        return self.gbs // (self.mbs * self.stages[0].dp)

    @property
    def memory_bytes(self) -> float | None:
        """Believed bytes of the fullest GPU; None: the planner has no memory model."""
        known = [s.memory_bytes for s in self.stages if s.memory_bytes is not None]
        return max(known, default=None)

    @property
    def why_not_uniform(self) -> str | None:
        """Why no strategy has these degrees, in words; None if one has."""
        degrees = {(stage.dp, stage.tp) for stage in self.stages}
        if len(degrees) > 1:
            return "stages differ in their degrees: " + ", ".join(map(str, self.stages))
        mixed = next((stage.mixed for stage in self.stages if stage.mixed), None)
        return f"layers of a stage differ: {mixed}" if mixed else None

    @property
    def unequal_layers(self) -> str | None:
        """The layers per stage as text like ``9+7``; None if all stages have as many."""
        counts = [stage.num_layers for stage in self.stages]
        return "+".join(map(str, counts)) if len(set(counts)) > 1 else None

    def strategy(self, techniques: Techniques = NEUTRAL) -> Strategy | None:
        """Return the strategy with the plan's degrees and as many layers on every stage.

        Args:
            techniques: what the strategy uses beside its degrees; it recomputes more where the
                whole plan does.

        Returns:
            None where degrees differ between stages or layers: see ``why_not_uniform``.
        """
        if self.why_not_uniform:
            return None
        first = self.stages[0]
        return Strategy(
            dp=first.dp,
            tp=first.tp,
            pp=len(self.stages),
            mbs=self.mbs,
            gbs=self.gbs,
            techniques=replace(techniques, recompute=self._recompute(techniques.recompute)),
        )

    def _recompute(self, given: Recompute) -> Recompute:
        """The larger of what is given and what every layer of the plan computes again."""
        planned: list[Recompute] = [
            mode
            for stage in self.stages
            for mode in (
                (stage.recompute,) if isinstance(stage.recompute, str) else stage.recompute
            )
        ]
        least: Recompute = min(planned, key=_RECOMPUTE.index, default="none")
        return max(given, least, key=_RECOMPUTE.index)

    def __str__(self) -> str:
        if uniform := self.strategy():
            return (
                f"{uniform} ({self.unequal_layers} layers)" if self.unequal_layers else f"{uniform}"
            )
        return f"[{', '.join(map(str, self.stages))}]-mbs{self.mbs}-gbs{self.gbs}"


def uniform_plan(
    strategy: Strategy,
    num_layers: int,
    *,
    believed_s: float,
    seconds: Sequence[float] | None = None,
    memory_bytes: Sequence[float] | None = None,
) -> Plan:
    """Return the plan of a strategy, recomputation included.

    Args:
        strategy: its pp divides the layers.
        num_layers: transformer layers of the model.
        believed_s: seconds per iteration.
        seconds: of each stage for one micro-batch; None: not stated.
        memory_bytes: of each stage; None: not stated.
    """
    count = num_layers // strategy.pp
    stages = tuple(
        StagePlan(
            first_layer=i * count,
            num_layers=count,
            dp=strategy.dp,
            tp=strategy.tp,
            seconds=None if seconds is None else seconds[i],
            memory_bytes=None if memory_bytes is None else memory_bytes[i],
            recompute=strategy.techniques.recompute,
        )
        for i in range(strategy.pp)
    )
    return Plan(stages=stages, mbs=strategy.mbs, gbs=strategy.gbs, believed_s=believed_s)


def projected(plan: Plan, space: StrategySpace) -> tuple[Strategy, str]:
    """Return the strategy of S(gbs) that a plan becomes, and in words how; "" if it is the plan.

    Args:
        plan: stages may differ.
        space: S(gbs), with the techniques of the strategy.

    Raises:
        ConfigError: S(gbs) is empty.
    """
    uniform = plan.strategy(space.techniques)
    if uniform and space.why_not(uniform) is None:
        layers = plan.unequal_layers
        return uniform, f"planned {layers} layers, runs equal stages" if layers else ""
    candidates = space.at(plan.gbs)
    if not candidates:
        raise ConfigError(f"{plan}: no layout of {space.num_gpus} GPUs divides gbs {plan.gbs}")
    nearest = min(candidates, key=lambda strategy: _distance(plan, strategy))
    why = plan.why_not_uniform or space.why_not(uniform) if uniform else plan.why_not_uniform
    return nearest, f"planned {plan}, runs {nearest}, the nearest uniform strategy: {why}"


def _distance(plan: Plan, strategy: Strategy) -> float:
    """Doublings between a plan and a strategy: of stages, of tp (mean of layers), of m."""
    weights = [max(stage.num_layers, 1) for stage in plan.stages]
    tps = [weight * math.log2(s.tp) for weight, s in zip(weights, plan.stages, strict=True)]
    return (
        abs(math.log2(strategy.pp / len(plan.stages)))
        + abs(math.log2(strategy.tp) - sum(tps) / sum(weights))
        + abs(math.log2(strategy.num_microbatches / plan.num_microbatches))
    )
