"""The table of the surface: `cona` over `fixed-best`, by batch size and target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, page, ratio, table, yes
from cona.analysis.notes import HEADLINE, INTERVAL, notes, num_seeds
from cona.analysis.surface import LEVELS, Surface, surfaces
from cona.analysis.ttp import label

COLUMNS = (
    *("model", "gbs", "metric", "target", "headline", "best_in_hindsight", "state"),
    *("speedup_median", "speedup_low", "speedup_high", "n", "n_cona_reached"),
    *("clock", "time_source"),
)
"""`best_in_hindsight`: whether the batch size is that of the best fixed strategy (median over
seeds); with `state` at_least the median is a lower bound."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every batch size and target of every model."""
    return [
        _record(surface, gbs, target)
        for surface in surfaces(runs)
        for target in surface.targets
        for gbs in surface.gbs
        if (gbs, target) in surface.cells
    ]


def _record(surface: Surface, gbs: int, target: float) -> dict[str, Any]:
    cell = surface.cells[gbs, target]
    low, high = cell.interval or (None, None)
    clock = cell.pairs[0].method.run.clock
    return {
        "model": surface.model,
        "gbs": gbs,
        "metric": surface.metric,
        "target": target,
        "headline": yes(target == surface.headline),
        "best_in_hindsight": yes(surface.best_gbs.get(target) == gbs),
        "state": cell.state,
        "speedup_median": cell.centre,
        "speedup_low": low,
        "speedup_high": high,
        "n": len(cell.pairs),
        "n_cona_reached": cell.num_reached,
        "clock": clock["kind"],
        "time_source": clock["time_source"],
    }


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page of surfaces, one section for each model."""
    own = (
        "Speed-up of `cona` over the best layout at each global batch size, for every target from "
        "the first whose TTP under `cona` is at least 4 % of the budget; TTP interpolated between "
        "evaluations, so ratios differ a little from speedup.md's.",
        "`≥ x`: the fixed strategy did not reach the target, x = budget/TTP(cona). _Italic_: the "
        "batch size of the best fixed strategy in hindsight. Intervals and n: `surface.csv`.",
        HEADLINE,
        INTERVAL,
    )
    blocks = [block for surface in surfaces(runs) for block in _section(surface)]
    return page(
        f"# Speed-up by batch size and target, tier {tier}, {num_seeds(runs)}",
        notes(runs, *own),
        *(blocks or ["Nothing to compare: it takes `cona` and a fixed-best run."]),
    )


def _section(surface: Surface) -> Iterator[str]:
    yield f"## {surface.model} ({surface.metric})"
    yield _levels(surface)
    heads = [f"**{label(t)}**" if t == surface.headline else label(t) for t in surface.targets]
    rows = [[str(gbs), *(cell(surface, gbs, t) for t in surface.targets)] for gbs in surface.gbs]
    yield table(["gbs", *heads], rows)


def _levels(surface: Surface) -> str:
    shares = ", ".join(f"at least {level:g} in {surface.share(level):.0%}" for level in LEVELS)
    return f"Of all cells: {shares}, below 1 in {1 - surface.share(1.0):.0%}."


def cell(surface: Surface, gbs: int, target: float) -> str:
    """Return a speed-up as text, italic for the best batch size in hindsight."""
    found = surface.cells.get((gbs, target))
    if found is None:
        return "–"
    if found.centre is None:
        return NOT_REACHED
    text = ("≥ " if found.state == "at_least" else "") + ratio(found.centre)
    return f"_{text}_" if surface.best_gbs.get(target) == gbs else text
