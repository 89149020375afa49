"""Figure: how `cona`'s speed-up depends on the target and on the baseline's batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.groups import by_model, unique
from cona.analysis.load import Run
from cona.analysis.markdown import ratio
from cona.analysis.panels import MOST_LINES, add_legend, drawn, plain_log_ticks, side_by_side
from cona.analysis.speedup import HINDSIGHT, Speedup
from cona.analysis.style import HINDSIGHT_STYLE, LineStyle, line_style
from cona.analysis.surface import of_method
from cona.analysis.ttp import headline_target, ttp_rows

CAPTION = (
    "Speed-up = TTP(baseline)/TTP(cona), above 1 cona is faster; targets get harder to the right, "
    "from the first whose TTP under cona is at least 4 % of the budget. TTP: interpolated, log "
    "perplexity linear in time between evaluations; the tables count from evaluations, so their "
    "ratios differ a little. Lines: median over seeds; small dots: single seeds; no interval is "
    "drawn. Open triangles: the lower bound budget/TTP(cona) over a baseline that did not reach "
    "the target, in its colour, or grey for several with the same bound. Nothing is shown where "
    "cona did not reach the target. Vertical line: the headline target, the lowest that the best "
    "fixed strategy reached at every seed; number: the speed-up over that strategy there. "
    f"With more than {MOST_LINES} policies the planners are left out."
)
_GREY = "#555555"


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model; None if `cona` was compared with nothing."""
    found = {m: _shown(group) for m, group in by_model(runs).items()}
    found = {model: shown for model, shown in found.items() if shown}
    if not found:
        return None
    figure, panels = side_by_side(len(found), legend_in=2.1)
    for panel, (model, shown) in zip(panels, found.items(), strict=True):
        for baseline in unique(s.baseline for s in shown):
            _line(panel, baseline, [s for s in shown if s.baseline == baseline])
        _bounds(panel, shown)
        group = [r for r in runs if r.model == model]
        _headline(panel, headline_target(ttp_rows(group)), shown)
        _finish(panel, group, shown)
    panels[0].set_ylabel("speed-up of cona (log)")
    add_legend(figure, panels)
    return figure


def _shown(group: Sequence[Run]) -> list[Speedup]:
    return [speedup for speedup in of_method(drawn(group)) if speedup.centre]


def _style(baseline: str) -> LineStyle:
    return HINDSIGHT_STYLE if baseline == HINDSIGHT else line_style(baseline)


def _line(panel: Axes, baseline: str, shown: Sequence[Speedup]) -> None:
    style = _style(baseline)
    # hindsight lies wide below the baseline that it coincides with, so that both are seen
    below = baseline == HINDSIGHT
    exact = [s for s in shown if s.state == "ratio"]
    panel.plot(
        [s.target for s in exact],
        _centres(exact),
        color=style.color,
        linestyle=style.dash,
        linewidth=style.width,
        marker=style.marker,
        markersize=6.5 if below else 4,
        zorder=2.5 if below else 3,
        label=f"over {baseline}",
    )
    _dots(panel, exact, style.color)


def _bounds(panel: Axes, shown: Sequence[Speedup]) -> None:
    """Draw the lower bounds; baselines that miss a target at the same seeds share theirs."""
    owners: dict[tuple[float, float], list[str]] = {}
    for s in shown:
        if s.state == "at_least" and s.centre is not None:
            owners.setdefault((s.target, s.centre), []).append(s.baseline)
    looks: dict[str, Any] = {"marker": "^", "markersize": 6, "markerfacecolor": "white"}
    looks |= {"linestyle": "none", "zorder": 6}
    for (target, bound), baselines in owners.items():
        color = _style(baselines[0]).color if len(baselines) == 1 else _GREY
        panel.plot([target], [bound], color=color, **looks)
    if owners:
        panel.plot([], [], color=_GREY, label="at least (baseline unreached)", **looks)


def _headline(panel: Axes, headline: float | None, shown: Sequence[Speedup]) -> None:
    if headline is None:
        return
    panel.axvline(headline, color=_GREY, linestyle=":", linewidth=1.2, label="headline target")
    for speedup in shown:
        if (speedup.target, speedup.baseline) == (headline, HINDSIGHT) and speedup.centre:
            panel.annotate(
                ratio(speedup.centre),
                (headline, speedup.centre),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
                zorder=7,
            )


def _centres(shown: Sequence[Speedup]) -> list[float]:
    return [s.centre for s in shown if s.centre is not None]


def _dots(panel: Axes, exact: Sequence[Speedup], color: str) -> None:
    dots = [(s.target, x) for s in exact if len(s.pairs) > 1 for x in s.points]
    targets, values = [t for t, _ in dots], [x for _, x in dots]
    panel.scatter(targets, values, s=6, color=color, alpha=0.5, linewidths=0)


def _finish(panel: Axes, group: Sequence[Run], shown: Sequence[Speedup]) -> None:
    panel.axhline(1.0, color=_GREY, linewidth=0.9)
    targets = [s.target for s in shown]
    values = [x for s in shown for x in s.points]
    # at the right, room for the number beside the headline target, where the lines end
    span = max(max(targets) / min(targets), 1.5)
    easy, hard = max(targets) * span**0.04, min(targets) / span**0.13
    low, high = min([*values, 0.8]) / 1.06, max([*values, 1.25]) * 1.06
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(easy, hard)
    panel.set_ylim(low, high)
    plain_log_ticks(panel.xaxis, hard, easy)
    plain_log_ticks(panel.yaxis, low, high, dense=True)
    panel.set_title(group[0].model)
    panel.set_xlabel(f"target {group[0].metric} (log, falling)")
