"""The planner report: what each planner picks, what it believes of it, and what is true.

Source: baselines.md (belief and truth); issue 5, item 3
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from cona import registry
from cona.cost import TimeModel
from cona.errors import ConfigError, nearest
from cona.planners.planner import Planner
from cona.planners.plans import Plan
from cona.planners.query import Answer, Query
from cona.policy import InformedPolicy
from cona.search import best
from cona.strategy import Strategy

ALL = "all"
"""Stands for every planner with its variants."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the reference clock says of a plan."""

    strategy: Strategy | None
    """The uniform strategy that the plan becomes; None: not expressible."""
    seconds: float | None
    """Its seconds per iteration; None: not expressible, or it cannot run."""
    over_best: float | None
    """How much longer it takes than the best strategy of S(gbs), as a fraction."""
    remark: str = ""
    """How the plan became a strategy, or why it has no time."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One planner at one global batch size."""

    planner: str
    """Its name, with parameters."""
    gbs: int
    """Global batch size, samples."""
    answer: Answer | None
    """What it answered; None: it found nothing."""
    search_s: float
    """Wall-clock seconds of its search."""
    truth: Truth | None = None
    """None: it found nothing, or there is no reference clock."""
    why_none: str | None = None
    """Why it found nothing; None if it found a plan."""


def planner_names() -> list[str]:
    """Return every planner with each of its variants, as text."""
    return [
        "-".join(part for part in (name, variant) if part)
        for name, kind in registry.policies().items()
        if hasattr(kind, "plan")
        for variant in ("", *getattr(kind, "variants", ()))
    ]


def chosen_names(text: str) -> list[str]:
    """Return the planners that a text asks for. Raises ConfigError: it names none."""
    if text == ALL:
        return planner_names()
    base = [name for name, kind in registry.policies().items() if hasattr(kind, "plan")]
    if not any(text == name or text.startswith(f"{name}-") for name in base):
        raise ConfigError(f"unknown planner '{text}': {nearest(text, [*planner_names(), ALL])}")
    return [text]


def planner(name: str, gbs: int, reference: TimeModel | None) -> Planner:
    """Return a planner for one global batch size; a bound is told the reference clock.

    Raises:
        ConfigError: no such planner or parameter.
    """
    found = registry.policy(f"{name}-gbs{gbs}")
    if reference is not None and isinstance(found, InformedPolicy):
        found.know(reference)
    return cast(Planner, found)


def judge(asked: Planner, name: str, query: Query, reference: TimeModel | None) -> Verdict:
    """Let a planner answer a query, and compare its belief with the reference clock.

    Args:
        asked: the planner.
        name: its name in the report.
        query: the question.
        reference: says what is true; None: nothing does (a profile).
    """
    started = time.perf_counter()
    try:
        answer = asked.plan(query)
    except ConfigError as error:
        search_s = time.perf_counter() - started
        return Verdict(
            planner=name, gbs=query.gbs, answer=None, search_s=search_s, why_none=str(error)
        )
    return Verdict(
        planner=name,
        gbs=query.gbs,
        answer=answer,
        search_s=time.perf_counter() - started,
        truth=None if reference is None else truth_of(answer.best, query, reference),
    )


def truth_of(plan: Plan, query: Query, reference: TimeModel) -> Truth:
    """Return what a plan takes on the reference clock, as a strategy with equal stages.

    Args:
        plan: a planner's pick.
        query: what was asked; it has S(gbs) and the techniques.
        reference: the reference time source.
    """
    strategy = plan.strategy(query.techniques)
    why_not = plan.why_not_uniform
    if strategy is not None:
        why_not = query.space.why_not(strategy)
    if strategy is None or why_not:
        remark = f"not expressible: {why_not}"
        return Truth(strategy=None, seconds=None, over_best=None, remark=remark)
    if rule := reference.why_not(strategy):
        return Truth(strategy=strategy, seconds=None, over_best=None, remark=f"cannot run: {rule}")
    seconds = reference.time_s(strategy)
    return Truth(
        strategy=strategy,
        seconds=seconds,
        over_best=_over_best(seconds, query, reference),
        remark=_remark(plan, strategy, query),
    )


def _over_best(seconds: float, query: Query, reference: TimeModel) -> float | None:
    feasible = [s for s in query.strategies if reference.why_not(s) is None]
    return seconds / best(feasible, reference)[1] - 1 if feasible else None


def _remark(plan: Plan, strategy: Strategy, query: Query) -> str:
    remarks = []
    if plan.unequal_layers:
        remarks.append("judged with equal stages")
    if strategy.techniques.recompute != query.techniques.recompute:
        remarks.append(f"recompute {strategy.techniques.recompute}")
    return "; ".join([*remarks, plan.notes] if plan.notes else remarks)


def found_any(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the verdicts; raises ConfigError with the first reason if no planner found a plan."""
    if not any(verdict.answer for verdict in verdicts):
        raise ConfigError(verdicts[0].why_none or "no planner was asked")
    return verdicts
