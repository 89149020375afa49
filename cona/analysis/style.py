"""The look of every figure: one colour per policy, and lines that survive a grey printer."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cona.analysis.groups import fixed_gbs

PANEL_WIDTH_IN = 4.2
PANEL_HEIGHT_IN = 3.3
GRID_COLOR = "#d9d9d9"
TEXT_COLOR = "#262626"
_LEAST_GBS, _MOST_GBS = 8, 1024
_BLIND = sns.color_palette("colorblind").as_hex()


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    """How one policy is drawn, everywhere."""

    color: str
    dash: str | tuple[int, tuple[float, ...]]
    width: float
    """Points."""
    marker: str


HINDSIGHT_STYLE = LineStyle(color="#111111", dash="-", width=3.0, marker="o")
"""Of the best fixed strategy in hindsight, which is no policy."""
_NAMED = {
    "cona": LineStyle(color=_BLIND[3], dash="-", width=3.0, marker="o"),
    "cona-paper": LineStyle(color=_BLIND[1], dash=(0, (5, 1.5)), width=1.9, marker="s"),
    "copus": LineStyle(color=_BLIND[0], dash=(0, (4, 1)), width=1.6, marker="^"),
    "cbs-pessimistic": LineStyle(color=_BLIND[9], dash=(0, (1, 0.6)), width=1.8, marker="<"),
    "cbs-optimistic": LineStyle(color="#9a8c00", dash=(0, (6, 1.5, 1, 1.5)), width=1.6, marker=">"),
    "pollux": LineStyle(color=_BLIND[5], dash=(0, (5, 1, 1, 1, 1, 1)), width=1.6, marker="v"),
    "norm-test": LineStyle(color=_BLIND[2], dash=(0, (2, 1.5)), width=1.8, marker="P"),
    "rampup": LineStyle(color=_BLIND[4], dash=(0, (3, 1, 1, 1)), width=1.6, marker="D"),
    "seesaw": LineStyle(color="#6a3d9a", dash=(0, (1, 0.6)), width=1.8, marker="X"),
    "merrill": LineStyle(color=_BLIND[7], dash=(0, (4, 1)), width=1.8, marker="h"),
    "greedy-oracle": LineStyle(color="#111111", dash=(0, (1, 1)), width=1.9, marker="*"),
}
_MARKERS = "v^<>Xphd"
_DASHES = ((0, (1, 0.6)), (0, (4, 1)), (0, (6, 1.5, 1, 1.5)), (0, (2, 1.5)))
_OTHERS = [*(_BLIND[i] for i in (0, 2, 5, 6, 9)), "#9a8c00"]  # the palette's yellow is too pale


def gbs_color(gbs: int) -> str:
    """Return the shade of a global batch size: light for small, dark for large."""
    place = math.log2(max(gbs, _LEAST_GBS) / _LEAST_GBS) / math.log2(_MOST_GBS / _LEAST_GBS)
    return to_hex(sns.color_palette("crest", as_cmap=True)(min(place * 1.4, 1.0)))


def ink_on(color: str) -> str:
    """Return black or white, whichever reads better on a colour."""
    red, green, blue = mpl.colors.to_rgb(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"


def line_style(policy: str) -> LineStyle:
    """Return the style of a policy: a function of its name alone, the same in every figure."""
    if policy in _NAMED:
        return _NAMED[policy]
    gbs = fixed_gbs(policy)
    if gbs is not None:
        rank = round(math.log2(gbs))
        dash = _DASHES[rank % len(_DASHES)]
        marker = _MARKERS[rank % len(_MARKERS)]
        return LineStyle(color=gbs_color(gbs), dash=dash, width=1.4, marker=marker)
    code = zlib.crc32(policy.encode())
    return LineStyle(
        color=_OTHERS[code % len(_OTHERS)],
        dash=_DASHES[code // 7 % len(_DASHES)],
        width=1.6,
        marker=_MARKERS[code // 31 % len(_MARKERS)],
    )


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the project's style while figures are drawn and saved."""
    rules: dict[Any, Any] = {
        "axes.edgecolor": "#808080",
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "grid.color": GRID_COLOR,
        "grid.linewidth": 0.6,
        "text.color": TEXT_COLOR,
        "savefig.dpi": 160,
        "svg.hashsalt": "cona",  # else its names of clip paths are drawn by chance
        "figure.constrained_layout.use": True,
    }
    with sns.axes_style("whitegrid"), sns.plotting_context("paper"), mpl.rc_context(rules):
        yield


def image_of(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the content of a file that holds no date and no version.

    Args:
        figure: what to draw.
        suffix: png, pdf, or svg, which is cut to what is drawn.
    """
    content = io.BytesIO()
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
        "svg": {"Date": None, "Creator": None},
    }[suffix]
    edges = "tight" if suffix == "svg" else None
    figure.savefig(content, format=suffix, metadata=metadata, bbox_inches=edges)
    return content.getvalue()
