"""Figure: the speed-up of `cona` over fixed batch sizes as a surface over batch size and target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cona.analysis.load import Run
from cona.analysis.markdown import ratio
from cona.analysis.style import ink_on
from cona.analysis.surface import LEVELS, Surface, surfaces
from cona.analysis.ttp import label

CAPTION = (
    "Cells: TTP(best layout at the row's global batch size)/TTP(cona), median over seeds; no "
    "interval is drawn; above 1 cona is faster. TTP: interpolated between evaluations; columns: "
    "the rungs of the target, easy to hard, from the first whose TTP under cona is at least 4 % of "
    "the budget; bold: the headline target. ≥: the fixed strategy did not reach the target, its "
    "budget stands for its TTP; empty: cona did not reach it at some seed. Lines: where the "
    "paper's range of speed-ups over offline methods, 1.4 to 9.6, begins and ends, and 1. Bars "
    "below numbers: the batch size of the best fixed strategy in hindsight, median over seeds."
)
_WIDTH_IN = 10.0
_ROW_IN, _MARGIN_IN = 0.33, 0.95
_CMAP = mpl.colormaps["PuOr"]
Dash = Literal[":", "-", "--"]
_LINES: dict[float, tuple[str, float, Dash]] = {
    1.0: ("#6b6b6b", 1.6, ":"),
    LEVELS[0]: ("#000000", 2.2, "-"),
    LEVELS[1]: ("#000000", 2.2, "--"),
}
_BAR = "#111111"


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model; None if `cona` was compared with nothing."""
    found = surfaces(runs)
    if not found:
        return None
    rows = [len(surface.gbs) for surface in found]
    height = sum(rows) * _ROW_IN + len(rows) * _MARGIN_IN + 1.6
    figure = Figure(figsize=(_WIDTH_IN, height))
    grid = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)
    norm = _norm(found)
    for panel, surface in zip(grid[:, 0], found, strict=True):
        _panel(panel, surface, norm)
    _color_bar(figure, norm)
    figure.axes[0].legend(
        handles=_legend(), loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=4, frameon=False
    )
    return figure


def _norm(found: Sequence[Surface]) -> Normalize:
    """Colours of the log speed-up, the same distance for twice as fast and twice as slow."""
    centres = [c.centre for surface in found for c in surface.cells.values() if c.centre]
    most = max([abs(math.log(x)) for x in centres] + [math.log(1.5)])
    return Normalize(-most, most)


def _panel(panel: Axes, surface: Surface, norm: Normalize) -> None:
    values = _values(surface)
    panel.pcolormesh(np.ma.masked_invalid(np.log(values)), cmap=_CMAP, norm=norm, alpha=0.85)
    for row, gbs in enumerate(surface.gbs):
        for column, target in enumerate(surface.targets):
            _number(panel, surface, gbs, target, (column + 0.5, row + 0.56), norm)
            if surface.best_gbs.get(target) == gbs:
                panel.plot(
                    [column + 0.25, column + 0.75], [row + 0.13] * 2, color=_BAR, linewidth=3
                )
    for level, (color, width, dash) in _LINES.items():
        edges = list(borders(values >= level, np.isnan(values)))
        panel.add_collection(
            LineCollection(edges, colors=color, linewidths=width, linestyles=dash, zorder=5)
        )
    _finish(panel, surface)


def _values(surface: Surface) -> np.ndarray:
    """Return the speed-ups, NaN where `cona` did not reach, shape [batch sizes, targets]."""
    centres = [[surface.centre(g, t) for t in surface.targets] for g in surface.gbs]
    return np.array([[math.nan if c is None else c for c in row] for row in centres])


def borders(
    inside: np.ndarray, unknown: np.ndarray
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the edges between cells inside and outside of a level, in units of cells.

    Args:
        inside: whether a cell is, shape [rows, columns].
        unknown: cells without a value, which have no edge, same shape.
    """
    rows, columns = inside.shape
    for row in range(rows):
        for column in range(columns):
            for down, right in ((1, 0), (0, 1)):
                other = row + down, column + right
                if other[0] == rows or other[1] == columns:
                    continue
                if unknown[row, column] or unknown[other]:
                    continue
                if inside[row, column] != inside[other]:
                    yield (column + right, row + down), (column + 1, row + 1)


def _number(
    panel: Axes,
    surface: Surface,
    gbs: int,
    target: float,
    at: tuple[float, float],
    norm: Normalize,
) -> None:
    cell = surface.cells.get((gbs, target))
    if cell is None or cell.centre is None:
        return
    text = ("≥" if cell.state == "at_least" else "") + ratio(cell.centre)
    ink = ink_on(to_hex(_CMAP(norm(math.log(cell.centre)))))
    size = min(7.5, 130 / len(surface.targets))
    panel.text(*at, text, ha="center", va="center", fontsize=size, color=ink)


def _finish(panel: Axes, surface: Surface) -> None:
    panel.set_xticks(
        [column + 0.5 for column in range(len(surface.targets))], map(label, surface.targets)
    )
    panel.set_yticks([row + 0.5 for row in range(len(surface.gbs))], map(str, surface.gbs))
    for text, target in zip(panel.get_xticklabels(), surface.targets, strict=True):
        text.set_fontweight("bold" if target == surface.headline else "normal")
    panel.set_facecolor("#e8e8e8")
    panel.grid(visible=False)
    panel.set_ylabel("gbs of the baseline")
    panel.set_title(f"{surface.model}, target {surface.metric}", loc="left")


def _color_bar(figure: Figure, norm: Normalize) -> None:
    most = math.exp(float(norm.vmax or 0.0))
    known = (1.1, 1.4, 2, 3, 5, 9.6, 20, 50)
    ticks = [x for x in (*(1 / k for k in reversed(known)), 1, *known) if 1 / most <= x <= most]
    bar = figure.colorbar(
        ScalarMappable(norm=norm, cmap=_CMAP), ax=figure.axes, aspect=40, pad=0.01
    )
    bar.set_ticks([math.log(x) for x in ticks], labels=[ratio(x) for x in ticks])
    bar.set_label("speed-up of cona (log)")


def _legend() -> list[Line2D]:
    lines = [
        Line2D([], [], color=color, linewidth=width, linestyle=dash, label=f"speed-up {level:g}")
        for level, (color, width, dash) in _LINES.items()
    ]
    return [*lines, Line2D([], [], color=_BAR, linewidth=3, label="best fixed in hindsight")]
