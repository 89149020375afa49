"""Problems with less to choose from: one layout, or one global batch size.

A policy that holds one of them fixed is asked the same question in a smaller space.
Source: baselines.md 11-13 and 18.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from cona.errors import ConfigError
from cona.policy import Problem
from cona.search import best
from cona.specs import LadderSpec
from cona.strategy import Layout, Strategy, StrategySpace


@dataclass(frozen=True, kw_only=True)
class OneLayoutSpace(StrategySpace):
    """The part of S(gbs) that has one layout."""

    layout: Layout
    """The only layout there is."""

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The one layout, if the model divides into it."""
        return (self.layout,) if self.why_not_layout(self.layout) is None else ()


def best_at(problem: Problem, gbs: int) -> Strategy:
    """Return the fastest strategy of a batch size, by the policy's belief.

    Raises:
        ConfigError: none is feasible.
    """
    return best(problem.space.at(gbs), problem.belief)[0]


def feasible(problem: Problem, gbs: int) -> list[Strategy]:
    """Return the strategies of a batch size that are feasible, by the policy's belief."""
    return [s for s in problem.space.at(gbs) if problem.belief.why_not(s) is None]


def runnable_rungs(problem: Problem) -> list[int]:
    """Return the ladder's batch sizes that have a feasible strategy, ascending.

    Raises:
        ConfigError: none has.
    """
    rungs = [gbs for gbs in problem.rungs if feasible(problem, gbs)]
    return rungs or [best_at(problem, problem.rungs[-1]).gbs]  # the search says why there is none


def with_layout(problem: Problem, layout: Layout) -> Problem:
    """Return the problem in which only one layout exists; rungs that it cannot run are left out.

    Args:
        problem: the whole problem.
        layout: the only layout of the smaller one.

    Raises:
        ConfigError: the layout can run no rung.
    """
    shared = {f.name: getattr(problem.space, f.name) for f in fields(StrategySpace)}
    narrow = replace(problem, space=OneLayoutSpace(layout=layout, **shared))
    rungs = [gbs for gbs in problem.rungs if feasible(narrow, gbs)]
    if not rungs:
        raise ConfigError(
            f"layout {layout} can run no batch size of the ladder, {list(problem.rungs)}; "
            f"one that can: {best_at(problem, problem.rungs[-1]).layout}"
        )
    return with_rungs(narrow, rungs[0], rungs[-1])


def with_rungs(problem: Problem, gbs_min: int, gbs_max: int) -> Problem:
    """Return the problem with another ladder, in samples; the largest micro-batch stays."""
    mbs_max = problem.tier.ladder.mbs_max
    ladder = LadderSpec(gbs_min=gbs_min, gbs_max=gbs_max, mbs_max=mbs_max)
    return replace(problem, tier=problem.tier.model_copy(update={"ladder": ladder}))
