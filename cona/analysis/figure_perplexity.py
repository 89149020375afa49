"""Figure: perplexity over clock time, with the switch points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cona.analysis.groups import by_model, by_policy
from cona.analysis.load import Record, Run
from cona.analysis.panels import (
    DRAWN,
    SHOWN_FROM,
    add_row_legend,
    drawn,
    families,
    plain_log_ticks,
)
from cona.analysis.style import PANEL_HEIGHT_IN, PANEL_WIDTH_IN, LineStyle, line_style

CAPTION = (
    "Lines: median over seeds of log perplexity at evaluations, linear in time between them; band: "
    "smallest to largest seed (none if n = 1). Markers: strategy switches of the first seed, on "
    "the line; filled if the global batch size changed, open if only the layout did. The steep "
    "start, above the model's largest perplexity at 4 % of the budget, is cut off. Of many "
    "policies each family has a row, with cona in all of them. "
    f"{DRAWN}"
)
_NUM_TIMES = 400


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model; None without any evaluation."""
    known = [r for r in runs if r.curve.ppl.size > 1]
    if not known:
        return None
    rows, models = families(known), by_model(drawn(known))
    size = (max(len(models) * PANEL_WIDTH_IN, 5.2) + 1.8, len(rows) * PANEL_HEIGHT_IN + 1.0)
    figure = Figure(figsize=size)
    grid = figure.subplots(len(rows), len(models), squeeze=False)
    for panels, (title, row) in zip(grid, rows.items(), strict=True):
        for panel, (model, group) in zip(panels, models.items(), strict=True):
            for policy, seeds in by_policy([r for r in row if r.model == model]).items():
                _line(panel, policy, seeds)
            _finish(panel, f"{model} ({group[0].metric})", group)
        panels[0].set_ylabel(f"{title}\nperplexity (log)".strip())
        add_row_legend(panels)
    for panel in grid[-1]:
        panel.set_xlabel(f"train clock, {known[0].clock['kind']} seconds")
    return figure


def _line(panel: Axes, policy: str, seeds: Sequence[Run]) -> None:
    style = line_style(policy)
    times, logs = common_grid(seeds)
    centre = np.median(logs, axis=0)
    # the wide line lies below the others, so that a policy on the same curve is still seen
    above = 2 if policy == "cona" else 3
    panel.plot(
        times,
        np.exp(centre),
        color=style.color,
        linestyle=style.dash,
        linewidth=style.width,
        zorder=above,
        label=policy,
    )
    if len(seeds) > 1:
        low, high = np.exp(logs.min(axis=0)), np.exp(logs.max(axis=0))
        panel.fill_between(times, low, high, color=style.color, alpha=0.15, linewidth=0)
    for switch in seeds[0].switches:
        height = float(np.exp(np.interp(switch["train_s"], times, centre)))
        _switch_point(panel, switch, height, style, zorder=above + 2)


def common_grid(
    seeds: Sequence[Run],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times up to the shortest run's end and log perplexities there.

    Args:
        seeds: runs of one model and policy.

    Returns:
        Seconds, shape [times], and log perplexity, shape [seeds, times].
    """
    curves = [s.curve for s in seeds]
    if len(curves) == 1:
        return curves[0].train_s, np.log(curves[0].ppl)[None, :]
    times = np.linspace(0.0, min(float(c.train_s[-1]) for c in curves), _NUM_TIMES)
    return times, np.stack([c.log_ppl_at(times) for c in curves])


def _switch_point(
    panel: Axes, switch: Record, height: float, style: LineStyle, zorder: int
) -> None:
    of_gbs = switch["from"].rpartition("gbs")[2] != switch["to"].rpartition("gbs")[2]
    panel.plot(
        [float(switch["train_s"])],
        [height],
        marker=style.marker,
        markersize=7 if style.marker == "*" else 5,
        markerfacecolor=style.color if of_gbs else "white",
        markeredgecolor=style.color,
        zorder=zorder,
    )


def _finish(panel: Axes, title: str, group: Sequence[Run]) -> None:
    budget = group[0].budget_s
    lowest = min(float(r.curve.ppl.min()) for r in group)
    early = np.array([SHOWN_FROM * budget])
    highest = max(float(np.exp(r.curve.log_ppl_at(early))[0]) for r in group)
    low, high = lowest / 1.04, max(highest, lowest * 1.2) * 1.04
    panel.set_yscale("log")
    panel.set_ylim(low, high)
    panel.set_xlim(0, max(float(r.curve.train_s[-1]) for r in group) * 1.02)
    plain_log_ticks(panel.yaxis, low, high)
    panel.set_title(title)
