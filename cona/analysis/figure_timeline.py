"""Figure: which strategy each policy ran, over the train clock."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cona.analysis.groups import by_model, by_policy, fixed_gbs
from cona.analysis.load import Record, Run
from cona.analysis.panels import DRAWN, MOST_LINES, drawn
from cona.analysis.style import gbs_color, ink_on

CAPTION = (
    "Bars: stages of constant strategy, from its start to the next one's, darker for a larger "
    "global batch size; labels: global batch size and layout (dp-tp-pp, micro-batch size), left "
    "out where a bar is too short. First seed of each policy only, so there is no centre or "
    f"interval. {DRAWN} Then fixed-best, which never switches, is left out too."
)
_WIDTH_IN = 10.0
_ROW_IN = 0.36
_TEXT_PT = 6.5
_CHARACTER_IN = 0.6 * _TEXT_PT / 72


def draw(runs: Sequence[Run]) -> Figure:
    """Return the figure: one panel for each model, one bar for each policy."""
    shown = by_model(_chaining(drawn(runs)))
    groups = {m: [g[0] for g in by_policy(group).values()] for m, group in shown.items()}
    rows = [len(firsts) for firsts in groups.values()]
    height = sum(rows) * _ROW_IN + len(rows) * 0.55 + 1.1
    figure = Figure(figsize=(_WIDTH_IN, height))
    grid = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)
    for panel, (model, firsts) in zip(grid[:, 0], groups.items(), strict=True):
        _panel(panel, model, firsts)
    figure.axes[-1].set_xlabel(f"train clock, {runs[0].clock['kind']} seconds")
    sizes = sorted({_gbs(s) for firsts in groups.values() for r in firsts for s in _stages(r)})
    figure.legend(
        handles=[Patch(color=gbs_color(g), label=f"gbs {g}") for g in sizes],
        loc="outside right center",
        frameon=False,
    )
    return figure


def _chaining(runs: Sequence[Run]) -> list[Run]:
    """Leave fixed batch sizes out where there are many policies: they never switch."""
    is_many = len(by_policy(runs)) > MOST_LINES
    return [run for run in runs if not (is_many and fixed_gbs(run.policy) is not None)]


def _panel(panel: Axes, model: str, firsts: Sequence[Run]) -> None:
    end = max(float(r.result["train_s"]) for r in firsts)
    for row, run in enumerate(firsts):
        stages = _stages(run)
        ends = [*(float(s["train_s"]) for s in stages[1:]), float(run.result["train_s"])]
        for stage, stop in zip(stages, ends, strict=True):
            _bar(panel, row, stage, stop, end)
    panel.set_yticks(range(len(firsts)), [r.policy for r in firsts])
    panel.set_ylim(len(firsts) - 0.4, -0.6)
    panel.set_xlim(0, end * 1.005)
    panel.grid(visible=False, axis="y")
    panel.set_title(model, loc="left")


def _bar(panel: Axes, row: int, stage: Record, stop: float, end: float) -> None:
    start = float(stage["train_s"])
    color = gbs_color(_gbs(stage))
    panel.barh(
        row, stop - start, left=start, height=0.78, color=color, edgecolor="white", linewidth=0.9
    )
    # the panel is about 1.9 inches narrower than the figure: policy names and the legend
    room_in = (stop - start) / end * (_WIDTH_IN - 1.9)
    text = fitting_label(stage["strategy"], int(room_in / _CHARACTER_IN))
    middle = (start + stop) / 2
    panel.text(middle, row, text, ha="center", va="center", fontsize=_TEXT_PT, color=ink_on(color))


def fitting_label(strategy: str, num_characters: int) -> str:
    """Return the longest label of a strategy that fits: two lines, the batch size, or nothing."""
    layout, _, gbs = strategy.rpartition("-gbs")
    degrees, _, mbs = layout.rpartition("-")
    for text in (f"gbs {gbs}\n{layout}", f"gbs {gbs} {mbs}\n{degrees}", gbs):
        if max(map(len, text.splitlines())) + 1 <= num_characters:
            return text
    return ""


def _stages(run: Run) -> list[Record]:
    return list(run.result["stages"])


def _gbs(stage: Record) -> int:
    return int(stage["strategy"].rpartition("gbs")[2])
