"""Which strategy each run was in, over its train clock: a bar and a table of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cona.analysis.groups import by_model, marked
from cona.analysis.load import Record, Run
from cona.analysis.markdown import number
from cona.analysis.style import gbs_color
from cona.report.shapes import Part, Table, parts
from cona.strategy import Strategy

MOST_STAGES = 40
"""Lines of a run's table of stages; its bar has them all."""
_HEAD = ("strategy", "from s", "to s", "from sample", "T is")


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One run's stages."""

    run: Run
    name: str
    """The policy, marked where it is a bound."""
    bar: tuple[Part, ...]
    sizes: str
    """The batch sizes in words, for those who do not see the bar."""
    num_stages: int
    table: Table


def timelines(runs: Sequence[Run]) -> dict[str, list[Timeline]]:
    """Return a timeline of every run, by model; bars of one model share their scale."""
    return {model: _of_model(group) for model, group in by_model(runs).items()}


def legend(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return every global batch size that a run was in, with its colour."""
    sizes = {_gbs(stage) for run in runs for stage in run.result["stages"]}
    return [(f"gbs {gbs}", gbs_color(gbs)) for gbs in sorted(sizes)]


def _of_model(group: Sequence[Run]) -> list[Timeline]:
    longest_s = max(float(run.result["train_s"]) for run in group)
    return [_timeline(run, longest_s) for run in group]


def _timeline(run: Run, longest_s: float) -> Timeline:
    stages = list(run.result["stages"])
    starts = [float(stage["train_s"]) for stage in stages]
    spans = list(zip(starts, [*starts[1:], float(run.result["train_s"])], strict=True))
    sizes = [_gbs(stage) for stage in stages]
    pieces = [
        (start, end, gbs_color(gbs), str(stage["strategy"]))
        for stage, gbs, (start, end) in zip(stages, sizes, spans, strict=True)
    ]
    rows = [_row(stage, *span) for stage, span in zip(stages, spans, strict=True)]
    return Timeline(
        run=run,
        name=marked(run.policy, run.kind),
        bar=parts(pieces, longest_s) if longest_s > 0 else (),
        sizes=_in_words(sizes),
        num_stages=len(stages),
        table=Table(head=_HEAD, rows=tuple(rows[:MOST_STAGES])),
    )


def _row(stage: Record, start_s: float, end_s: float) -> tuple[str, ...]:
    seconds = number(start_s), number(end_s)
    origin = str(stage.get("time_origin") or "–")
    return str(stage["strategy"]), *seconds, f"{stage['samples']:,}", origin


def _in_words(sizes: Sequence[int]) -> str:
    """Return the batch sizes in order, each once in a row; a long middle is left out."""
    changes = [g for i, g in enumerate(sizes) if i == 0 or g != sizes[i - 1]]
    if len(changes) > 8:
        changes_text = [*map(str, changes[:4]), "…", *map(str, changes[-3:])]
    else:
        changes_text = [str(g) for g in changes]
    return "gbs " + " → ".join(changes_text)


def _gbs(stage: Record) -> int:
    return Strategy.parse(str(stage["strategy"])).gbs
