"""What an iteration of each strategy that was used consists of, by the reference cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cona.analysis.figure_breakdown import PART_COLORS
from cona.analysis.groups import by_model
from cona.analysis.load import Run
from cona.analysis.markdown import number
from cona.analysis.repricing import check_same, reference_of
from cona.cost.ranking import PART_WORDS, Ranked, rank
from cona.errors import ConaError
from cona.report.shapes import Part, Table, parts

MOST_STRATEGIES = 24
"""Strategies of a model that are shown: those in which the clock spent the most seconds."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """The strategies of one model."""

    model: str
    title: str
    """What is priced, where, and by which model."""
    num_used: int
    """Strategies that a run was in."""
    bars: tuple[tuple[str, tuple[Part, ...]], ...]
    """Name of each strategy, and its parts as shares of the iteration."""
    table: Table
    why_none: str
    """Why there is no breakdown; empty if there is one."""


def breakdowns(runs: Sequence[Run]) -> list[Breakdown]:
    """Return the breakdown of every model, or why it has none."""
    return [_breakdown(model, group) for model, group in by_model(runs).items()]


def legend(found: Sequence[Breakdown]) -> list[tuple[str, str]]:
    """Return every part that a bar holds, in words, with its colour."""
    used = {part.color for one in found for _, bar in one.bars for part in bar}
    return [(words, PART_COLORS[p]) for p, words in PART_WORDS.items() if PART_COLORS[p] in used]


def _breakdown(model: str, group: Sequence[Run]) -> Breakdown:
    seconds = spent_s(group)
    clock = group[0].clock
    title = f"{clock.get('priced_as') or model} on {clock['cluster']}, by {clock['time_source']}"
    ranked, why_none = _ranked(group, list(seconds)[:MOST_STRATEGIES])
    ranked = sorted(ranked, key=lambda one: -seconds[str(one.strategy)])
    used = [part for part in PART_WORDS if any(one.parts_s.get(part, 0) > 0 for one in ranked)]
    total_s = sum(seconds.values())
    rows = [_row(one, seconds[str(one.strategy)] / total_s, used) for one in ranked]
    head = ("strategy", "T s", "samples/s", "GB/GPU", "of the clock", *map(PART_WORDS.get, used))
    return Breakdown(
        model=model,
        title=title,
        num_used=len(seconds),
        bars=tuple((str(one.strategy), _bar(one)) for one in ranked),
        table=Table(head=tuple(map(str, head)), rows=tuple(rows)),
        why_none=why_none,
    )


def spent_s(runs: Sequence[Run]) -> dict[str, float]:
    """Return the seconds of iterations by strategy, of all runs together, the most first."""
    seconds: dict[str, float] = {}
    for run in runs:
        for step in run.steps:
            name = str(step["strategy"])
            seconds[name] = seconds.get(name, 0.0) + float(step["iteration_s"])
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _ranked(group: Sequence[Run], names: Sequence[str]) -> tuple[list[Ranked], str]:
    """Return what the reference clock says of strategies, or why it says nothing."""
    if group[0].clock["kind"] != "modelled":
        return [], "The ranks measured whole iterations: no cost model has split them."
    try:
        reference = reference_of(group[0])
        check_same(group[0], reference)
        strategies = [reference.parse(name) for name in names]
        return rank(strategies, reference.time, len(strategies)), ""
    except ConaError as error:  # one model without a price stops nothing
        return [], f"No breakdown: {error}."


def _row(one: Ranked, share: float, used: Sequence[str]) -> tuple[str, ...]:
    memory = "–" if one.memory_bytes is None else number(one.memory_bytes / 1e9, 3)
    figures = number(one.iteration_s), number(one.samples_per_s), memory, f"{share:.1%}"
    shares = (f"{one.parts_s.get(part, 0.0) / one.iteration_s:.1%}" for part in used)
    return str(one.strategy), *figures, *shares


def _bar(one: Ranked) -> tuple[Part, ...]:
    names = [part for part in PART_WORDS if part in one.parts_s]
    ends = list(accumulate(one.parts_s[part] for part in names))
    pieces = [
        (start, end, PART_COLORS[part], f"{PART_WORDS[part]} {(end - start) / one.iteration_s:.1%}")
        for part, start, end in zip(names, [0.0, *ends], ends, strict=False)
    ]
    return parts(pieces, one.iteration_s)
