"""Figure: the waterfall from a planner's pick to `cona`, and its rivals beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.attribution import attributions
from cona.analysis.groups import METHOD, by_model, unique
from cona.analysis.load import Run
from cona.analysis.markdown import number, ratio
from cona.analysis.panels import MOST_LINES, drawn, plain_log_ticks
from cona.analysis.seeds import common_seeds
from cona.analysis.style import line_style
from cona.analysis.ttp import headline_target, label
from cona.analysis.waterfall import Level, levels

CAPTION = (
    "TTP at the headline target; bars go from the step before to this one: blue, hatched where it "
    "is slower; the number is the factor by which it is faster. The pick: of the planner with the "
    "median TTP (without any, of fixed-best). Then the best layout at its batch size, the best "
    "fixed strategy in hindsight, cona's batch sizes re-timed at that strategy's layout, and cona. "
    "Below the line: the other policies, no steps. Points and bars: geometric mean over the seeds "
    "that most policies have, the centre for which factors multiply; no interval. Not reached: at "
    f"some seed, or without a price. Grey, with more than {MOST_LINES} policies: ablations and "
    "variants."
)
_PANEL_IN, _LABELS_IN, _ROW_IN = 3.4, 2.2, 0.25
_FASTER, _SLOWER, _ABSENT, _VARIANT = "#0173b2", "#de8f05", "#555555", "#8c8c8c"
_PICK = "pick of "
"""How the level begins that has another planner in every model."""


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure: one panel for each model with `cona` and a headline target, else None."""
    found = dict(filter(None, map(_of_model, by_model(runs).values())))
    if not found:
        return None
    picks = unique(pick for steps in found.values() for pick in _picked(steps))
    if len(picks) > 1:  # one name for what is another planner's in every model; it is in the title
        found = {
            "\n".join([title, *_picked(steps)]): _same(steps) for title, steps in found.items()
        }
    lit = {run.policy for run in drawn(runs)}
    rows = _rows([level for steps in found.values() for level in steps], lit)
    width = max(len(found) * _PANEL_IN, 5.2) + _LABELS_IN
    figure = Figure(figsize=(width, len(rows) * _ROW_IN + 2.0))
    grid = figure.subplots(1, len(found), squeeze=False, sharey=True)
    for panel, (title, steps) in zip(grid[0], found.items(), strict=True):
        _panel(panel, steps, rows, lit)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel(f"TTP, {runs[0].clock['kind']} seconds (log)")
    return figure


def _rows(shown: Sequence[Level], lit: Collection[str]) -> list[str]:
    """Return the rows of all models: the steps, the policies drawn in colour, then the rest."""
    steps = [level.label for level in shown if level.is_step]
    others = [level.label for level in shown if not level.is_step]
    return unique([*steps, *sorted(others, key=lambda label: label not in lit)])


def _picked(steps: Sequence[Level]) -> list[str]:
    return [level.label for level in steps if level.label.startswith(_PICK)]


def _same(steps: Sequence[Level]) -> list[Level]:
    name = "median planner's pick"
    return [replace(one, label=name) if one.label.startswith(_PICK) else one for one in steps]


def _of_model(group: Sequence[Run]) -> tuple[str, list[Level]] | None:
    """Return a panel's title and levels; None if there is nothing to show."""
    ones = attributions(group)
    target = headline_target([one.row for one in ones])
    seeds = common_seeds(group)
    steps = levels([o for o in ones if o.row.target == target and seeds.has(o.row.run)])
    if target is None or all(level.seconds is None for level in steps):
        return None
    return f"{group[0].model}, target {group[0].metric} {label(target)}", steps


def _panel(panel: Axes, shown: Sequence[Level], rows: Sequence[str], lit: Collection[str]) -> None:
    known = [level.seconds for level in shown if level.seconds is not None]
    low, high = min(known) / 1.15, max(known) * (max(known) / min(known)) ** 0.5 * 1.3
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    before: float | None = None
    for level in shown:
        row = rows.index(level.label)
        if level.seconds is None:
            _absent(panel, row, level.why_none)
        elif level.is_step:
            _step(panel, row, level.seconds, before)
        else:
            _point(panel, row, level, is_lit=level.label in lit)
        before = level.seconds if level.is_step and level.seconds is not None else before
    _finish(panel, rows, sum(level.is_step for level in shown))
    plain_log_ticks(panel.xaxis, low, high)


def _step(panel: Axes, row: int, seconds: float, before: float | None) -> None:
    start = before or seconds
    is_slower = seconds > start
    panel.barh(
        row,
        seconds - start,
        left=start,
        height=0.62,
        color=_SLOWER if is_slower else _FASTER,
        hatch="///" if is_slower else None,
        edgecolor="white",
        linewidth=0.0,
    )
    panel.plot([seconds, seconds], [row - 0.38, row + 0.38], color="#111111", linewidth=1.6)
    if before is not None:
        panel.plot([start, start], [row - 1.38, row - 0.31], color=_ABSENT, linewidth=0.7)
    factor = "" if before is None else f"  (x {ratio(before / seconds)})"
    _number(panel, row, max(seconds, start), f"{number(seconds, 3)} s{factor}")


def _point(panel: Axes, row: int, level: Level, *, is_lit: bool) -> None:
    if level.seconds is None:
        return
    style = line_style(level.label)
    marker, color = (style.marker, style.color) if is_lit else ("o", _VARIANT)
    panel.plot([level.seconds], [row], marker=marker, color=color, markersize=6)
    _number(panel, row, level.seconds, f"{number(level.seconds, 3)} s")


def _absent(panel: Axes, row: int, why: str) -> None:
    place = panel.get_yaxis_transform()
    panel.text(0.01, row, why, transform=place, va="center", fontsize=7, color=_ABSENT)


def _number(panel: Axes, row: int, at: float, text: str) -> None:
    panel.annotate(
        text, (at, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7
    )


def _finish(panel: Axes, rows: Sequence[str], num_steps: int) -> None:
    if num_steps < len(rows):
        panel.axhline(num_steps - 0.5, color=_ABSENT, linewidth=0.7, linestyle=":")
    panel.set_yticks(range(len(rows)), rows)
    for text in panel.get_yticklabels():  # none but in the first panel
        text.set_fontweight("bold" if text.get_text() == METHOD else "normal")
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.grid(visible=False, axis="y")
