"""What `cona plan --planner` prints: a table for people, JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from cona.cli.terminal import json_text, table
from cona.planners import Plan, StagePlan
from cona.planners.report import Verdict
from cona.runlog import finite

HEAD = (
    "gbs",
    "planner",
    "plan",
    "believed s",
    "GB/GPU",
    "true s",
    "over %",
    "search s",
    "plans",
)
DROP = ("plans", "search s", "GB/GPU", "believed s")
"""Columns that a narrow terminal does without, the least important first."""


def as_text(title: str, verdicts: Sequence[Verdict], *, all_plans: bool) -> str:
    """Return the report for people: a line each, remarks below, then all plans if asked for."""
    blocks = [title, table(HEAD, map(_cells, verdicts), drop=DROP)]
    remarks = [
        f"{one.planner} at gbs {one.gbs}: {text}" for one in verdicts if (text := remark(one))
    ]
    blocks += ["\n".join(remarks)] if remarks else []
    for one in verdicts if all_plans else ():
        if one.answer:
            lines = [(short(p), _seconds(p.believed_s), _gb(p)) for p in one.answer.evaluated]
            head = ("plan", "believed s", "GB/GPU")
            blocks += [f"All plans of {one.planner} at gbs {one.gbs}:", table(head, lines)]
    return "\n\n".join(blocks)


def remark(one: Verdict) -> str:
    """Return what a reader must know of a verdict beside its numbers, or nothing."""
    if one.why_none:
        return one.why_none
    if one.truth:
        return one.truth.remark
    return one.answer.best.notes if one.answer else ""


def short(plan: Plan) -> str:
    """Return a plan as a column can hold it: what repeats is counted, JSON has every stage.

    The layers 1+1+1+1+4 are 4x1+4; a stage whose layers differ is mixed, and a remark says how.
    """
    if uniform := plan.strategy():
        layers = "+".join(_counted(str(stage.num_layers) for stage in plan.stages))
        return f"{uniform} ({layers} layers)" if plan.unequal_layers else str(uniform)
    stages = [f"{one.num_layers}L:mixed" if one.mixed else str(one) for one in plan.stages]
    return f"[{', '.join(_counted(stages))}]-mbs{plan.mbs}-gbs{plan.gbs}"


def _counted(parts: Iterable[str]) -> Iterator[str]:
    """Yield parts; four or more alike as one with their number, e.g. ``4x5``."""
    for part, same in groupby(parts):
        number = len(list(same))
        yield from [part] * number if number < 4 else [f"{number}x{part}"]


def _cells(one: Verdict) -> tuple[str, ...]:
    search = f"{one.search_s:.2g}"
    if one.answer is None:
        return (str(one.gbs), one.planner, "-", "-", "-", "-", "-", search, "-")
    plan, truth = one.answer.best, one.truth
    over = None if truth is None else truth.over_best
    return (
        str(one.gbs),
        one.planner,
        short(plan),
        _seconds(plan.believed_s),
        _gb(plan),
        _seconds(truth.seconds if truth else None),
        "-" if over is None else f"{100 * over:.1f}",
        search,
        str(one.answer.num_evaluated),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _gb(plan: Plan) -> str:
    size = plan.memory_bytes
    return "-" if size is None or not math.isfinite(size) else f"{size / 1e9:.1f}"


def as_json(about: dict[str, Any], verdicts: Sequence[Verdict], *, all_plans: bool) -> str:
    """Return the report for programs; what is unknown or infinite is null."""
    rows = [_fields(one, all_plans=all_plans) for one in verdicts]
    return json_text(about | {"planners": rows})


def _fields(one: Verdict, *, all_plans: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "planner": one.planner,
        "gbs": one.gbs,
        "why_none": one.why_none,
        "plan": one.answer and plan_fields(one.answer.best),
        "num_evaluated": one.answer and one.answer.num_evaluated,
        "search_s": one.search_s,
        "truth": one.truth
        and {
            "strategy": one.truth.strategy and str(one.truth.strategy),
            "iteration_s": one.truth.seconds,
            "over_best": one.truth.over_best,
            "remark": one.truth.remark,
        },
    }
    if all_plans:
        fields["evaluated"] = [plan_fields(p) for p in one.answer.evaluated] if one.answer else []
    return fields


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Return a plan with its stages and its cost for programs."""
    return {
        "text": str(plan),
        "gbs": plan.gbs,
        "mbs": plan.mbs,
        "num_microbatches": plan.num_microbatches,
        "believed_s": finite(plan.believed_s),
        "memory_bytes": finite(plan.memory_bytes),
        "why_not_uniform": plan.why_not_uniform,
        "notes": plan.notes,
        "stages": [_stage_fields(stage) for stage in plan.stages],
    }


def _stage_fields(stage: StagePlan) -> dict[str, Any]:
    known = {"seconds": finite(stage.seconds), "memory_bytes": finite(stage.memory_bytes)}
    return asdict(stage) | known
