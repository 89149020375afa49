"""What `cona plan` answers: the best strategies of one global batch size, or of a whole ladder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cona.cost import TimeModel
from cona.cost.ranking import NextBatch, Ranked, next_batch, rank
from cona.errors import ConfigError
from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Recompute, Strategy, StrategySpace, Techniques


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Which techniques a plan may use: the product of all of them is searched."""

    zero_stages: Sequence[int] = (0,)
    recompute: Sequence[Recompute] = ("none",)
    virtual_stages: Sequence[int] = (1,)
    context_parallel: Sequence[int] = (1,)
    sequence_parallel: bool = False

    @property
    def techniques(self) -> tuple[Techniques, ...]:
        """Every combination, in a fixed order. Raises ConfigError: a value breaks a rule."""
        product = itertools.product(
            self.zero_stages, self.recompute, self.virtual_stages, self.context_parallel
        )
        combinations = (
            Techniques(
                zero_stage=zero,
                recompute=recompute,
                sequence_parallel=self.sequence_parallel,
                virtual_stages=stages,
                context_parallel=context,
            )
            for zero, recompute, stages, context in product
        )
        return tuple(dict.fromkeys(combinations))


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One global batch size of a plan."""

    gbs: int
    """Global batch size, samples."""
    ranked: tuple[Ranked, ...]
    """Its fastest strategies, fastest first; empty if none is feasible."""
    why_none: str | None = None
    """Why no strategy is feasible; None if one is."""
    next: NextBatch | None = None
    """When the next larger batch wins; None if there is none or it cannot run."""


DEFAULT_PRESET = "improved"
"""Cost model of `cona plan` and `cona predict` where none is named."""


def candidates(
    model: ModelSpec, num_gpus: int, gbs: int, *, mbs_max: int, choices: Choices
) -> tuple[Strategy, ...]:
    """Return S(gbs) under every combination of techniques.

    Args:
        model: the model that is to be trained.
        num_gpus: GPUs that every strategy uses up.
        gbs: global batch size, samples.
        mbs_max: largest micro-batch, samples.
        choices: the techniques to combine.

    Raises:
        ConfigError: a technique breaks a rule, or its degree does not divide the GPUs.
    """
    ladder = LadderSpec(gbs_min=1, gbs_max=1, mbs_max=mbs_max)  # its rungs play no part here
    spaces = [
        StrategySpace(model=model, num_gpus=num_gpus, ladder=ladder, techniques=techniques)
        for techniques in choices.techniques
    ]
    for space in spaces:
        if space.why_empty:
            raise ConfigError(space.why_empty)
    return tuple(strategy for space in spaces for strategy in space.at(gbs))


def plan_rungs(
    strategies: dict[int, tuple[Strategy, ...]], time_model: TimeModel, *, top: int
) -> tuple[Rung, ...]:
    """Rank the strategies of each global batch size and say when the next one wins.

    Args:
        strategies: candidates by global batch size, ascending.
        time_model: what T is, and which strategies are feasible.
        top: how many to keep of each.

    Raises:
        ConfigError: no global batch size has a feasible strategy.
    """
    rungs = [_rung(gbs, found, time_model, top) for gbs, found in strategies.items()]
    if all(rung.why_none for rung in rungs):
        raise ConfigError(f"gbs {rungs[0].gbs}: {rungs[0].why_none}")
    pairs = itertools.zip_longest(rungs, rungs[1:])
    return tuple(_with_next(rung, larger) for rung, larger in pairs if rung)


def _rung(gbs: int, found: Sequence[Strategy], time_model: TimeModel, top: int) -> Rung:
    try:
        return Rung(gbs=gbs, ranked=tuple(rank(found, time_model, top)))
    except ConfigError as error:
        return Rung(gbs=gbs, ranked=(), why_none=str(error))


def _with_next(rung: Rung, larger: Rung | None) -> Rung:
    if larger is None or not (rung.ranked and larger.ranked):
        return rung
    crossing = next_batch(rung.ranked[0], larger.ranked[0])
    return Rung(gbs=rung.gbs, ranked=rung.ranked, next=crossing)
