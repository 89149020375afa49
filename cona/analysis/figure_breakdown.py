"""What an iteration consists of, strategy by strategy: one bar each, its parts stacked.

Source: architecture.md, Style 7.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.style import figure_style, image_of
from cona.cost.ranking import PART_WORDS, Ranked
from cona.errors import ConfigError
from cona.storage import write_whole

WIDTH_IN = 8.0
_PALETTE = sns.color_palette("colorblind", len(PART_WORDS)).as_hex()
PART_COLORS = dict(zip(PART_WORDS, _PALETTE, strict=True))
"""One colour per part of an iteration, in every figure."""
SUFFIXES = (".png", ".pdf")


def write_breakdown(ranked: Sequence[Ranked], title: str, path: Path) -> list[Path]:
    """Draw strategies as stacked bars of their parts, as PNG and PDF.

    Args:
        ranked: the strategies, from top to bottom.
        title: what is planned and what a second is; part of the caption.
        path: where to write; of the suffixes .png and .pdf both are written.

    Returns:
        The files written.

    Raises:
        ConfigError: the file's suffix is neither, or its folder does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--figure {path}: the suffix must be one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--figure {path}: there is no folder '{path.parent}'")
    with figure_style():
        figure = draw(ranked, title)
        written = [path.with_suffix(suffix) for suffix in SUFFIXES]
        for file in written:
            write_whole(file, image_of(figure, file.suffix.removeprefix(".")))
    return written


def draw(ranked: Sequence[Ranked], title: str) -> Figure:
    """Return the figure: seconds to the right, one bar per strategy."""
    figure = Figure(figsize=(WIDTH_IN, 1.9 + 0.32 * len(ranked)))
    axes = figure.subplots()
    _bars(axes, ranked)
    axes.set_xlabel("modelled seconds per iteration")
    axes.set_xlim(0, 1.2 * max(one.iteration_s for one in ranked))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    sns.despine(ax=axes, left=True)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
    caption = (
        f"{title}. One modelled iteration each: no repetition, no interval. End of bar: gbs/s."
    )
    wrapped = textwrap.fill(caption, width=int(WIDTH_IN * 17))
    figure.supxlabel(wrapped, fontsize=7, x=0.01, ha="left", color="#555555")
    return figure


def _bars(axes: Axes, ranked: Sequence[Ranked]) -> None:
    places = range(len(ranked))
    left = [0.0] * len(ranked)
    for part, words in PART_WORDS.items():
        seconds = [one.parts_s.get(part, 0.0) for one in ranked]
        if any(seconds):
            axes.barh(places, seconds, left=left, color=PART_COLORS[part], label=words, height=0.7)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    for place, one in zip(places, ranked, strict=True):
        rate = f" {one.samples_per_s:.3g} samples/s"
        axes.text(one.iteration_s, place, rate, va="center", fontsize=7)
    axes.set_yticks(places, [one.name for one in ranked])
