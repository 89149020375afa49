"""Pieces that the figures share: a panel for each model, a legend beside them, log ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from cona.analysis.groups import BOUND, METHOD, by_policy, fixed_gbs, has_parameter
from cona.analysis.load import Run
from cona.analysis.style import PANEL_HEIGHT_IN, PANEL_WIDTH_IN

SHOWN_FROM = 0.04
"""Share of the budget before which figures cut off the steep start."""
_LADDERS: tuple[tuple[float, ...], ...] = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8),
    (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9),
)
"""Ticks of a decade, from coarse to fine."""
_LEAST_GAP = 0.055
"""Share of the axis that a tick's text needs."""


MOST_LINES = 12
"""Policies up to which figures with a line for each show all."""
DRAWN = (
    f"With more than {MOST_LINES} policies, only fixed-best and the methods, schedules and bounds "
    "without parameters are drawn: no ablations, planners and variants."
)
"""What captions say of it."""
_FAMILIES = {
    "fixed batch sizes": ("offline",),
    "online": ("online",),
    "schedules and bounds": ("schedule", BOUND),
}
"""Kinds of policies that share a row of panels where there are too many for one."""


def drawn(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that a figure with a line or bar for each policy shows."""
    if len(by_policy(runs)) <= MOST_LINES:
        return list(runs)
    return [
        run
        for run in runs
        if fixed_gbs(run.policy) is not None
        or (run.kind not in ("offline", "ablation") and not has_parameter(run.policy))
    ]


def families(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the drawn runs as rows of panels: one row, or, of many policies, one for each family.

    `cona` is in every row, to compare with.
    """
    shown = drawn(runs)
    if len(by_policy(shown)) <= MOST_LINES:
        return {"": shown}
    rows = {title: [r for r in shown if r.kind in kinds] for title, kinds in _FAMILIES.items()}
    ours = [run for run in shown if run.policy == METHOD]
    return {
        title: [*ours, *(run for run in row if run.policy != METHOD)]
        for title, row in rows.items()
        if row
    }


def side_by_side(count: int, *, legend_in: float = 1.7) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in one row and room for a legend at the right."""
    size = (max(count * PANEL_WIDTH_IN, 5.2) + legend_in, PANEL_HEIGHT_IN + 1.0)
    figure = Figure(figsize=size)
    return figure, list(np.atleast_1d(np.asarray(figure.subplots(1, count))))


def add_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Add one legend at the right of all panels, each entry once."""
    entries: dict[str, Artist] = {}
    for panel in panels:
        handles, names = panel.get_legend_handles_labels()
        for handle, name in zip(handles, names, strict=True):
            entries.setdefault(name, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside right center",
        frameon=False,
        handlelength=3.2,
    )


def add_row_legend(panels: Sequence[Axes]) -> None:
    """Add a legend at the right of a row of panels, each entry of the row once."""
    entries: dict[str, Artist] = {}
    for panel in panels:
        entries |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    panels[-1].legend(
        list(entries.values()),
        list(entries),
        loc="center left",
        bbox_to_anchor=(1.03, 0.5),
        frameon=False,
        handlelength=3.2,
    )


def plain_log_ticks(axis: Axis, low: float, high: float, *, dense: bool = False) -> None:
    """Put ticks at round numbers, without exponents, on a log axis.

    Args:
        axis: a log axis.
        low: smallest value shown.
        high: largest value shown.
        dense: as many ticks as fit a vertical axis, instead of few.
    """
    axis.set_major_locator(FixedLocator(_many(low, high) if dense else _few(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):,.10g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _few(low: float, high: float) -> list[float]:
    """Return the coarsest ladder that puts at least four ticks in the range."""
    ladders = [_in_range(steps, low, high) for steps in _LADDERS]
    return next((ticks for ticks in ladders if len(ticks) >= 4), ladders[-1])


def _many(low: float, high: float) -> list[float]:
    """Return the finest ladder whose ticks lie far enough apart."""
    ladders = [_in_range(steps, low, high) for steps in reversed(_LADDERS)]
    least = math.log(high / low) * _LEAST_GAP
    wide = (t for t in ladders if all(math.log(b / a) >= least for a, b in pairwise(t)))
    return next(wide, ladders[-1])


def _in_range(steps: Sequence[float], low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (float(f"{step * 10.0**d:.3g}") for d in decades for step in steps)
    return [t for t in ticks if low <= t <= high]
