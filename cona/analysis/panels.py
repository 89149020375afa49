"""Pieces that the figures share: a panel for each model, a legend beside them, log ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from cona.analysis.style import PANEL_HEIGHT_IN, PANEL_WIDTH_IN


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


def plain_log_ticks(axis: Axis, low: float, high: float, *, base: str = "decimal") -> None:
    """Put few, evenly readable ticks without exponents on a log axis.

    Args:
        axis: a log axis.
        low: smallest value shown.
        high: largest value shown.
        base: ``decimal`` (1-2-5 steps, more of them if the range is narrow) or ``binary``.
    """
    ticks = _binary(low, high) if base == "binary" else _decimal(low, high)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):,.10g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _decimal(low: float, high: float) -> list[float]:
    """Return the coarsest of some 1-2-5 ladders that puts at least four ticks in the range."""
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(np.arange(1, 10, 0.5))):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) >= 4:
            return found
    return found


def _binary(low: float, high: float) -> list[float]:
    """Return powers of two, or quarter steps of them if the range is narrow."""
    span = math.log2(high / low)
    step = 1.0 if span > 2.5 else 0.5 if span > 1 else 0.25
    first, last = math.ceil(math.log2(low) / step), math.floor(math.log2(high) / step)
    return [2.0 ** (i * step) for i in range(first, last + 1)]
