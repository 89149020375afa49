"""Figure: the speed-up of `cona` if the gradient noise scale were believed, or were, another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.groups import fixed_gbs, unique
from cona.analysis.load import Run
from cona.analysis.panels import add_legend, plain_log_ticks
from cona.analysis.sensitivity import FACTORS, Sensitivity, believed_factor, sensitivities
from cona.analysis.speedup import HINDSIGHT, Speedup, State
from cona.analysis.style import HINDSIGHT_STYLE, PANEL_HEIGHT_IN, PANEL_WIDTH_IN, line_style

CAPTION = (
    "Speed-up of cona over the best layout at each fixed batch size, and over the best of these in "
    "hindsight; above 1 cona is faster. Upper row: real runs whose controller takes the GNS for so "
    "many times the measured one, at the headline target; lines: median over seeds, bars: its "
    "interval over the best in hindsight, with three seeds or more; no mark where cona did not "
    "reach it; open triangles: lower bounds, the baseline did not reach it. Lower row: modelled, "
    "nothing is trained: the noise recorded under cona's first seed times the factor; time to the "
    "same progress, in noiseless steps of B/(B + GNS) an iteration; cona is replayed; n = 1, no "
    "interval."
)
_GREY = "#555555"
Line = list[tuple[float, float]]
"""Factor and speed-up."""


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: a column for each model; None if nothing was modelled or misjudged."""
    found = sensitivities(runs)
    if not any(one.modelled or _misjudged(one) for one in found):
        return None
    width = max(len(found) * PANEL_WIDTH_IN, 5.2) + 2.1
    figure = Figure(figsize=(width, 2 * PANEL_HEIGHT_IN + 1.0))
    grid = np.atleast_2d(figure.subplots(2, len(found), squeeze=False))
    for (upper, lower), one in zip(grid.T, found, strict=True):
        _believed(upper, one)
        _modelled(lower, one)
        for panel in (upper, lower):
            _finish(panel)
        upper.set_title(f"{one.model}: believed")
        lower.set_title(f"{one.model}: modelled")
        lower.set_xlabel("factor of the GNS (log)")
    for panel in grid[:, 0]:
        panel.set_ylabel("speed-up of cona (log)")
    add_legend(figure, list(grid.ravel()))
    return figure


def _misjudged(one: Sensitivity) -> bool:
    return any(believed_factor(s.method) != 1.0 for s in one.believed)


def _believed(panel: Axes, one: Sensitivity) -> None:
    panel.axhline(1.0, color=_GREY, linewidth=0.9)
    shown = [s for s in one.believed if s.baseline == HINDSIGHT or fixed_gbs(s.baseline)]
    for baseline in unique(s.baseline for s in shown):
        mine = [s for s in shown if s.baseline == baseline]
        mine.sort(key=lambda s: believed_factor(s.method) or 0.0)
        _line(panel, baseline, [_point(s, "ratio") for s in mine])
        _bounds(panel, baseline, [_point(s, "at_least") for s in mine])
        if baseline == HINDSIGHT:
            _intervals(panel, mine)
    if not any(s.centre for s in shown):
        why = "headline target not reached by cona" if shown else "no fixed-best run"
        panel.text(0.5, 0.6, why, transform=panel.transAxes, ha="center", fontsize=8)


def _point(speedup: Speedup, state: State) -> tuple[float, float]:
    """Return factor and speed-up; one of another state is NaN, which interrupts the line."""
    value = speedup.centre if speedup.state == state else None
    return believed_factor(speedup.method) or 1.0, math.nan if value is None else value


def _modelled(panel: Axes, one: Sensitivity) -> None:
    panel.axhline(1.0, color=_GREY, linewidth=0.9)
    for gbs in (*(one.modelled[0].fixed_s if one.modelled else ()), None):
        values = [(m.factor, m.speedup(gbs)) for m in one.modelled]
        name = HINDSIGHT if gbs is None else f"fixed-best-gbs{gbs}"
        _line(panel, name, [(factor, value) for factor, value in values if value is not None])
    if not one.modelled:
        panel.text(0.5, 0.6, "not modelled", transform=panel.transAxes, ha="center", fontsize=8)


def _line(panel: Axes, baseline: str, points: Line) -> None:
    style = HINDSIGHT_STYLE if baseline == HINDSIGHT else line_style(baseline)
    below = baseline == HINDSIGHT
    panel.plot(
        [factor for factor, _ in points],
        [value for _, value in points],
        color=style.color,
        linestyle=style.dash,
        linewidth=style.width,
        marker=style.marker,
        markersize=6.5 if below else 4.5,
        zorder=2.5 if below else 3,
        label=f"over {baseline}",
    )


def _bounds(panel: Axes, baseline: str, points: Line) -> None:
    color = line_style(baseline).color
    for factor, value in points:
        panel.plot(
            [factor], [value], marker="^", color=color, markerfacecolor="white", linestyle="none"
        )


def _intervals(panel: Axes, shown: Sequence[Speedup]) -> None:
    for speedup in shown:
        if speedup.interval:
            factor, _ = _point(speedup, "ratio")
            panel.plot([factor] * 2, speedup.interval, color=HINDSIGHT_STYLE.color, linewidth=1.4)


def _finish(panel: Axes) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    panel.minorticks_off()
    panel.set_xlim(FACTORS[0] / 1.3, FACTORS[-1] * 1.3)
    is_empty = not any(np.isfinite(line.get_ydata()).any() for line in panel.lines[1:])
    low, high = (1.0, 1.0) if is_empty else panel.get_ylim()
    panel.set_ylim(min(low, 0.8), max(high, 1.25))
    plain_log_ticks(panel.yaxis, *panel.get_ylim(), dense=True)
