"""What `cona plan` answers: the best strategies of one global batch size, or of a whole ladder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cona import config
from cona.cost import TimeModel
from cona.cost.ranking import NextBatch, Ranked, next_batch, rank
from cona.errors import ConfigError
from cona.specs import LARGEST_GBS, LadderSpec, ModelSpec
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


Spaces = Sequence[StrategySpace]
"""One for each combination of techniques; at least one."""


def search_spaces(
    model: ModelSpec, num_gpus: int, *, mbs_max: int, choices: Choices
) -> tuple[StrategySpace, ...]:
    """Return S of every combination of techniques.

    Args:
        model: the model that is to be trained.
        num_gpus: GPUs that every strategy uses up.
        mbs_max: largest micro-batch, samples.
        choices: the techniques to combine.

    Raises:
        ConfigError: a technique breaks a rule, or its degree does not divide the GPUs.
    """
    ladder = LadderSpec(gbs_min=1, gbs_max=1, mbs_max=mbs_max)  # its rungs play no part here
    spaces = tuple(
        StrategySpace(model=model, num_gpus=num_gpus, ladder=ladder, techniques=techniques)
        for techniques in choices.techniques
    )
    for space in spaces:
        if space.why_empty:
            raise ConfigError(space.why_empty)
    return spaces


def candidates(spaces: Spaces, gbs: int) -> tuple[Strategy, ...]:
    """Return S(gbs) under every combination of techniques; ``gbs`` in samples."""
    return tuple(strategy for space in spaces for strategy in space.at(gbs))


def plan_rungs(
    spaces: Spaces, batch_sizes: Sequence[int], time_model: TimeModel, *, top: int
) -> tuple[Rung, ...]:
    """Rank the strategies of each global batch size and say when the next one wins.

    Args:
        spaces: what may be chosen.
        batch_sizes: global batch sizes in samples, ascending.
        time_model: what T is, and which strategies are feasible.
        top: how many to keep of each.

    Raises:
        ConfigError: no global batch size has a feasible strategy.
    """
    rungs = [_rung(spaces, gbs, time_model, top) for gbs in batch_sizes]
    if all(rung.why_none for rung in rungs):
        raise ConfigError(f"gbs {rungs[0].gbs}: {rungs[0].why_none}")
    pairs = itertools.zip_longest(rungs, rungs[1:])
    return tuple(_with_next(rung, larger) for rung, larger in pairs if rung)


def _rung(spaces: Spaces, gbs: int, time_model: TimeModel, top: int) -> Rung:
    found = candidates(spaces, gbs)
    if not found:
        return Rung(gbs=gbs, ranked=(), why_none=why_indivisible(spaces, gbs))
    try:
        return Rung(gbs=gbs, ranked=tuple(rank(found, time_model, top)))
    except ConfigError as error:
        return Rung(gbs=gbs, ranked=(), why_none=str(error))


def _with_next(rung: Rung, larger: Rung | None) -> Rung:
    if larger is None or not (rung.ranked and larger.ranked):
        return rung
    crossing = next_batch(rung.ranked[0], larger.ranked[0])
    return Rung(gbs=rung.gbs, ranked=rung.ranked, next=crossing)


# --- batch sizes that layouts divide ------------------------------------------------------------


def ladder(spaces: Spaces, first: int | None, last: int | None) -> tuple[int, ...]:
    """Return the doubling global batch sizes of a ladder, samples.

    Args:
        spaces: what may be chosen.
        first: the smallest; None: the usual one, or the next that doublings of some dp reach.
        last: the largest; None: as many doublings as usual.

    Raises:
        ConfigError: ``last`` is no doubling of ``first``.
    """
    usual = LadderSpec()
    if first is None:
        first = min(_doubled_to(dp, usual.gbs_min) for dp in _dps(spaces))
    if last is None:
        doublings = min(usual.gbs_max // usual.gbs_min, LARGEST_GBS // first).bit_length() - 1
        last = first * 2**doublings
    sizes = {"gbs_min": first, "gbs_max": last}
    return config.validate(LadderSpec, sizes, where="--ladder").rungs


def why_indivisible(spaces: Spaces, gbs: int) -> str:
    """Return why a global batch size has no strategy, and the nearest that have.

    Args:
        spaces: what may be chosen.
        gbs: samples; no layout's dp divides it.
    """
    dps = list(_dps(spaces))
    least = [dp for dp in dps if not any(dp % d == 0 for d in dps if d < dp)]
    nearest = _nearest(gbs, [max(1, round(gbs / dp)) * dp for dp in least])
    sizes = {size: f" ({dp} x {size // dp})" for dp in least for size in _around(dp, gbs)}
    doubled = _nearest(gbs, sizes)
    also = "" if doubled == nearest else f", or {doubled}{sizes[doubled]}"
    return (
        f"no layout of {spaces[0].num_gpus} GPUs divides it: dp, and so gbs, must be a multiple of "
        f"{' or '.join(map(str, least))}; nearest: gbs {nearest}{also}"
    )


def at_gbs_min(space: StrategySpace) -> tuple[Strategy, ...]:
    """Return the strategies of the smallest global batch size of a space's ladder.

    Raises:
        ConfigError: there is none.
    """
    gbs = space.ladder.gbs_min
    if strategies := space.at(gbs):
        return strategies
    raise ConfigError(space.why_empty or f"ladder.gbs_min {gbs}: {why_indivisible([space], gbs)}")


def _dps(spaces: Spaces) -> Iterator[int]:
    """Yield the data-parallel degrees of all layouts, ascending."""
    yield from sorted({layout.dp for space in spaces for layout in space.layouts})


def _doubled_to(dp: int, least: int) -> int:
    """Return the first of dp, 2*dp, 4*dp, ... that is at least so large."""
    return dp * 2 ** max(0, math.ceil(math.log2(least / dp)))


def _around(dp: int, gbs: int) -> tuple[int, int]:
    """Return the doublings of dp on both sides of a batch size; dp itself where all are larger."""
    above = _doubled_to(dp, gbs)
    return max(above // 2, dp), above


def _nearest(gbs: int, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: (abs(size - gbs), size))
