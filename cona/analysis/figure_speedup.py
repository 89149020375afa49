"""Figure: how `cona`'s speed-up depends on the target and on the baseline's batch size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.groups import by_model, unique
from cona.analysis.load import Run
from cona.analysis.panels import add_legend, plain_log_ticks, side_by_side
from cona.analysis.speedup import HINDSIGHT, Speedup, speedups
from cona.analysis.style import LineStyle, line_style
from cona.analysis.ttp import headline_target, ttp_rows

CAPTION = (
    "Speed-up = TTP(baseline)/TTP(cona), above 1 cona is faster; targets get harder to the right. "
    "Lines: median over seeds; small dots: single seeds; no interval is drawn. Open triangles: "
    "a baseline did not reach the target, its line ends, and budget/TTP(cona) is a lower bound. "
    "Nothing is shown where cona did not reach the target. Vertical line: the headline target, the "
    "lowest that every policy and seed reached."
)
METHOD = "cona"
_HINDSIGHT_STYLE = LineStyle(color="#111111", dash="-", width=2.6, marker="o")


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model; None if `cona` was compared with nothing."""
    found = {m: _of_method(group) for m, group in by_model(runs).items()}
    found = {model: shown for model, shown in found.items() if shown}
    if not found:
        return None
    figure, panels = side_by_side(len(found), legend_in=2.1)
    for panel, (model, shown) in zip(panels, found.items(), strict=True):
        for baseline in unique(s.baseline for s in shown):
            _line(panel, baseline, [s for s in shown if s.baseline == baseline])
        _bounds(panel, shown)
        _finish(panel, model, [r for r in runs if r.model == model], shown)
    panels[0].set_ylabel("speed-up of cona (log2)")
    add_legend(figure, panels)
    return figure


def _of_method(group: Sequence[Run]) -> list[Speedup]:
    return [s for s in speedups(ttp_rows(group)) if s.method == METHOD and s.centre is not None]


def _line(panel: Axes, baseline: str, shown: Sequence[Speedup]) -> None:
    style = _HINDSIGHT_STYLE if baseline == HINDSIGHT else line_style(baseline)
    above = 5 if baseline == HINDSIGHT else 3
    exact = [s for s in shown if s.state == "ratio"]
    panel.plot(
        [s.target for s in exact],
        _centres(exact),
        color=style.color,
        linestyle=style.dash,
        linewidth=style.width,
        marker=style.marker,
        markersize=4,
        zorder=above,
        label=f"over {baseline}",
    )
    _dots(panel, exact, style.color)


def _bounds(panel: Axes, shown: Sequence[Speedup]) -> None:
    """Draw the lower bounds once: budget/TTP(cona) is the same for every unreached baseline."""
    bounds = [s for s in shown if s.state == "at_least"]
    if bounds:
        panel.plot(
            [s.target for s in bounds],
            _centres(bounds),
            color="#555555",
            linestyle="none",
            marker="^",
            markersize=6,
            markerfacecolor="white",
            zorder=6,
            label="at least (baseline unreached)",
        )


def _centres(shown: Sequence[Speedup]) -> list[float]:
    return [s.centre for s in shown if s.centre is not None]


def _dots(panel: Axes, exact: Sequence[Speedup], color: str) -> None:
    dots = [(s.target, x) for s in exact if len(s.pairs) > 1 for x in s.points]
    targets, values = [t for t, _ in dots], [x for _, x in dots]
    panel.scatter(targets, values, s=6, color=color, alpha=0.5, linewidths=0)


def _finish(panel: Axes, model: str, group: Sequence[Run], shown: Sequence[Speedup]) -> None:
    headline = headline_target(ttp_rows(group))
    if headline is not None:
        panel.axvline(
            headline, color="#555555", linestyle=":", linewidth=1.2, label="headline target"
        )
    panel.axhline(1.0, color="#555555", linewidth=0.9)
    targets = [s.target for s in shown]
    values = [x for s in shown for x in s.points]
    low, high = min([*values, 0.8]) / 1.06, max([*values, 1.25]) * 1.06
    panel.set_xscale("log")
    panel.set_yscale("log", base=2)
    panel.set_ylim(low, high)
    plain_log_ticks(panel.xaxis, min(targets), max(targets))
    plain_log_ticks(panel.yaxis, low, high, base="binary")
    panel.set_xlim(max(targets) * 1.05, min(targets) / 1.05)
    panel.set_title(model)
    panel.set_xlabel(f"target {group[0].metric} (log, falling)")
