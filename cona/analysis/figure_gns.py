"""Figure: gradient noise scale over samples, its interval, and the switch thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cona.analysis.groups import by_model
from cona.analysis.load import Run
from cona.analysis.panels import add_legend, plain_log_ticks, side_by_side
from cona.analysis.style import line_style
from cona.analysis.thresholds import crossings, finite

CAPTION = (
    "GNS: ratio of smoothed terms, in samples, along the trajectory of cona's first seed (else of "
    "the first policy that switches); band: its 90 % interval, up to the top where it is "
    "unbounded; no line where there is no estimate. GNS*: the threshold above which the next "
    "larger batch size makes more progress per second; no line where there is none. Grey steps: "
    "global batch size; vertical lines: switches. One trajectory, so there is no centre over seeds."
)


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model; None if no policy could have switched."""
    chosen = [r for r in map(_one, by_model(runs).values()) if r is not None]
    if not chosen:
        return None
    figure, panels = side_by_side(len(chosen))
    for panel, run in zip(panels, chosen, strict=True):
        _panel(panel, run)
    panels[0].set_ylabel("samples (log)")
    add_legend(figure, panels)
    return figure


def _one(group: Sequence[Run]) -> Run | None:
    """Return the run of `cona`, else of the first online policy, whose GNS is drawn."""
    online = [r for r in group if r.kind == "online" and r.steps]
    return next((r for r in online if r.policy == "cona"), online[0] if online else None)


def _panel(panel: Axes, run: Run) -> None:
    style = line_style(run.policy)
    samples, gns, low, high = (_column(run, k) for k in ("samples", "gns", "gns_low", "gns_high"))
    gbs = _column(run, "gbs")
    stars = crossings(run)
    bottom, top = _limits([gns, gbs, np.array([s for _, s in stars])])
    # an interval without an upper end reaches the top; without a lower one, the bottom
    ends = np.where(np.isnan(low), bottom, low), np.where(np.isnan(high), top, high)
    panel.fill_between(
        samples,
        *ends,
        where=~np.isnan(gns),
        color=style.color,
        alpha=0.2,
        linewidth=0,
        label="GNS, 90 % interval",
    )
    name = f"GNS under {run.policy}"
    panel.plot(samples, gns, color=style.color, linewidth=1.8, zorder=4, label=name)
    panel.plot(
        samples, gbs, color="#9a9a9a", linewidth=1.2, drawstyle="steps-pre", label="gbs in force"
    )
    _thresholds(panel, stars)
    _finish(panel, run, bottom, top)


def _thresholds(panel: Axes, stars: Sequence[tuple[int, float]]) -> None:
    if stars:
        panel.plot(
            [samples for samples, _ in stars],
            [star for _, star in stars],
            color="#111111",
            linestyle=(0, (3, 1.5)),
            linewidth=1.3,
            drawstyle="steps-pre",
            zorder=3,
            label="threshold GNS*",
        )


def _finish(panel: Axes, run: Run, bottom: float, top: float) -> None:
    for place, switch in enumerate(run.switches):
        name = "switch" if place == 0 else None
        panel.axvline(switch["samples"], color="#555555", linestyle=":", linewidth=1.0, label=name)
    panel.set_yscale("log")
    panel.set_ylim(bottom, top)
    panel.set_xlim(0, float(run.result["samples"]))
    plain_log_ticks(panel.yaxis, bottom, top)
    panel.set_title(run.model)
    panel.set_xlabel("consumed samples")


def _column(run: Run, key: str) -> NDArray[np.float64]:
    values: list[Any] = [finite(step[key]) for step in run.steps]
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def _limits(columns: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    values = np.concatenate(columns)
    values = values[values > 0]
    return float(values.min()) / 1.6, float(values.max()) * 1.6
