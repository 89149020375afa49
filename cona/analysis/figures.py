"""Figures of one tier, each as PNG, PDF and a caption that states clock, n, centre and interval.

PNG and PDF hold title and caption; an SVG holds neither, for pages that have both as text.

Source: architecture.md, Style 7.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.text import Text

from cona.analysis import (
    figure_attribution,
    figure_gns,
    figure_perplexity,
    figure_profile,
    figure_sensitivity,
    figure_speedup,
    figure_surface,
    figure_timeline,
)
from cona.analysis.load import Run, load_runs
from cona.analysis.notes import common_sentences, num_seeds
from cona.analysis.style import figure_style, image_of
from cona.runlog import write_atomic
from cona.storage import write_whole


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure: its file name, title, what its marks mean, and the function that draws it."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sequence[Run]], Figure | None]
    """Returns None if the runs hold nothing to draw."""


PLOTS = (
    Plot(
        name="perplexity_over_clock",
        title="Perplexity over clock time",
        caption=figure_perplexity.CAPTION,
        draw=figure_perplexity.draw,
    ),
    Plot(
        name="strategy_timeline",
        title="Strategy timeline",
        caption=figure_timeline.CAPTION,
        draw=figure_timeline.draw,
    ),
    Plot(
        name="gns_over_samples",
        title="Gradient noise scale and its thresholds",
        caption=figure_gns.CAPTION,
        draw=figure_gns.draw,
    ),
    Plot(
        name="speedup_over_target",
        title="Speed-up of cona over fixed batch sizes",
        caption=figure_speedup.CAPTION,
        draw=figure_speedup.draw,
    ),
    Plot(
        name="speedup_surface",
        title="Speed-up of cona by the baseline's batch size and the target",
        caption=figure_surface.CAPTION,
        draw=figure_surface.draw,
    ),
    Plot(
        name="gns_sensitivity",
        title="Sensitivity of the speed-up to the gradient noise scale",
        caption=figure_sensitivity.CAPTION,
        draw=figure_sensitivity.draw,
    ),
    Plot(
        name="performance_profile",
        title="Performance profile over models, targets and seeds",
        caption=figure_profile.CAPTION,
        draw=figure_profile.draw,
    ),
    Plot(
        name="attribution",
        title="From a planner's pick to cona",
        caption=figure_attribution.CAPTION,
        draw=figure_attribution.draw,
    ),
)


def write_figures(results: Path, tier: str) -> list[Path]:
    """Write every figure of a tier under ``results/<tier>/figures/``.

    Args:
        results: root of the results.
        tier: name of the tier.

    Returns:
        The files written: PNG, PDF, SVG and a text caption for each figure.

    Raises:
        RunError: there is no finished run, or the runs cannot be compared.
    """
    runs = load_runs(results, tier)
    folder = results / tier / "figures"
    with figure_style():
        return [path for plot in PLOTS for path in _write(folder, tier, plot, runs)]


def _write(folder: Path, tier: str, plot: Plot, runs: Sequence[Run]) -> Iterator[Path]:
    figure = plot.draw(runs)
    if figure is None:
        return
    title = f"{plot.title}, tier {tier}, {num_seeds(runs)}"
    caption = " ".join([plot.caption, *common_sentences(runs)])
    texts = _label(figure, title, caption.replace("`", ""))
    for suffix in ("png", "pdf", "svg"):
        for text in texts:
            text.set_visible(suffix != "svg")
        path = folder / f"{plot.name}.{suffix}"
        write_whole(path, image_of(figure, suffix))
        figure.set_layout_engine("none")  # the files share the layout, which is slow to find
        yield path
    path = folder / f"{plot.name}.txt"
    write_atomic(path, f"{title}.\n{caption}\n")
    yield path


def _label(figure: Figure, title: str, caption: str) -> tuple[Text, Text]:
    """Put the title above and the caption below, wrapped to the figure's width; return both."""
    for axes in figure.axes:
        sns.despine(ax=axes)
    width = figure.get_size_inches()[0]
    head = textwrap.fill(title, width=int(width * 10))
    text = textwrap.fill(caption, width=int(width * 17))
    return (
        figure.suptitle(head, fontsize=11, fontweight="bold", x=0.01, ha="left"),
        figure.supxlabel(text, fontsize=7, x=0.01, ha="left", color="#555555"),
    )
