"""What the templates draw: tables of text cells, and bars of coloured parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 1000.0
"""Units from the left to the right end of a bar; its SVG stretches to the width that it gets."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each as long as the head."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A rectangle of a bar."""

    x: float
    width: float
    """Both in units of the bar, rounded to a tenth."""
    color: str
    words: str
    """What it is."""


def parts(pieces: Iterable[tuple[float, float, str, str]], whole: float) -> tuple[Part, ...]:
    """Return the rectangles of a bar; pieces without any width are left out.

    Args:
        pieces: start, end (in the unit of ``whole``), color and words of each.
        whole: what the full width stands for, greater than 0.
    """
    scale = WIDTH / whole
    return tuple(
        Part(
            x=round(start * scale, 1),
            width=round((end - start) * scale, 1),
            color=color,
            words=words,
        )
        for start, end, color, words in pieces
        if end > start
    )
