"""The layouts that tests of the parallel engine range over."""

from __future__ import annotations

from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Layout, StrategySpace


def layouts_of(spec: ModelSpec, num_ranks: int) -> tuple[Layout, ...]:
    """Return every layout of a number of ranks that a model divides into."""
    return StrategySpace(model=spec, num_gpus=num_ranks, ladder=LadderSpec()).layouts
