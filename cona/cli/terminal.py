"""What commands print: text and tables that fit the terminal, JSON, and progress on stderr.

On a terminal no line is longer than it is wide. Into a pipe or a file every row is one whole line,
unless the environment variable COLUMNS asks for a width.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import click

ItemT = TypeVar("ItemT")
Cells = Sequence[str]

LEAST = 16
"""Characters to which a column of words may be narrowed, if its words are no longer."""
GAP = "  "
_FIGURE = re.compile(r"-|[\d.,]+(e[+-]\d+)?")
_UNLIMITED = 1_000_000


def columns() -> int:
    """Return how many characters a line may have."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(1, shutil.get_terminal_size().columns)
    return _UNLIMITED


# --- text and JSON --------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print text for people; a line that is too long goes on below, indented."""
    click.echo(fold(text, columns()))


def fold(text: str, room: int) -> str:
    """Return text without lines that are too long; a word, like a path, is never cut.

    Args:
        text: lines, of which tables fit already.
        room: characters of a line.
    """
    return "\n".join(_fold_line(line, room) for line in text.splitlines())


def _fold_line(line: str, room: int) -> str:
    if len(line) <= room:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        room,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def json_text(content: Any) -> str:
    """Return JSON as every command writes it; raises ValueError for NaN and infinity."""
    return json.dumps(content, indent=2, allow_nan=False)


def say_json(content: Any) -> None:
    """Print JSON for programs; its lines are as long as they are."""
    click.echo(json_text(content))


# --- tables ---------------------------------------------------------------------------------------


def table(head: Cells, lines: Iterable[Cells], drop: Iterable[str] = ()) -> str:
    """Return columns as text: words to the left, columns of figures to the right.

    Where there is too little room, the widest columns are wrapped between words; where that is not
    enough, columns are left out, and a last line says which; then words are cut.

    Args:
        head: names of the columns.
        lines: cells of each row.
        drop: columns that may be left out, the least important first.
    """
    rows, room, left_out = [list(line) for line in lines], columns(), []
    known = [_Column(name, tuple(cells)) for name, *cells in zip(head, *rows, strict=True)]
    for name in drop:
        if _total(column.least for column in known) <= room:
            break
        known = [column for column in known if column.head != name]
        left_out.append(name)
    note = f"Not shown for want of room: {', '.join(left_out)}; a wider terminal or --json has it."
    drawn = _drawn(known, _widths(known, room))
    return "\n".join([*drawn, *([fold(note, room)] if left_out else [])])


@dataclass(frozen=True)
class _Column:
    head: str
    cells: tuple[str, ...]

    @property
    def is_figures(self) -> bool:
        return all(_FIGURE.fullmatch(cell) for cell in self.cells)

    @property
    def natural(self) -> int:
        """Characters without any wrapping."""
        return max(map(len, (self.head, *self.cells)))

    @property
    def least(self) -> int:
        """Characters to which it may be narrowed without cutting a word or a figure."""
        longest = max(map(len, " ".join((self.head, *self.cells)).split(" ")))
        return longest if self.is_figures else max(longest, min(self.natural, LEAST))

    @property
    def least_cut(self) -> int:
        """Characters to which it may be narrowed where words must be cut."""
        return self.least if self.is_figures else min(self.natural, LEAST)

    def line(self, text: str, width: int) -> list[str]:
        """Return a cell, wrapped."""
        is_cut = width < self.least
        wrapped = textwrap.wrap(text, width, break_on_hyphens=is_cut) or [""]
        return [part.rjust(width) if self.is_figures else part.ljust(width) for part in wrapped]


def _total(widths: Iterable[int]) -> int:
    known = list(widths)
    return sum(known) + len(GAP) * (len(known) - 1)


def _widths(known: Sequence[_Column], room: int) -> list[int]:
    """Return widths that fit, if any do: the widest columns share what the others leave."""
    leasts = [column.least for column in known]
    if _total(leasts) > room:
        leasts = [column.least_cut for column in known]
    limit = max((column.natural for column in known), default=0)
    while True:
        widths = [
            max(least, min(column.natural, limit))
            for column, least in zip(known, leasts, strict=True)
        ]
        if _total(widths) <= room or limit <= 1:
            return widths
        limit -= 1


def _drawn(known: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    rows = zip(*([column.head, *column.cells] for column in known), strict=True)
    for row in rows:
        cells = [c.line(text, width) for c, text, width in zip(known, row, widths, strict=True)]
        blanks = [" " * width for width in widths]
        for parts in zip_longest(*cells):
            whole = (part or blank for part, blank in zip(parts, blanks, strict=True))
            yield GAP.join(whole).rstrip()


# --- progress -------------------------------------------------------------------------------------


def steps(items: Iterable[ItemT], what: str, total: int | None = None) -> Iterable[ItemT]:
    """Yield items with a bar on a terminal's stderr that says how many are done.

    What is printed meanwhile would go to stderr, too: print afterwards.

    Args:
        items: what is worked on.
        what: said before the bar.
        total: how many there are, where items have no length.
    """
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    is_shown = sys.stderr.isatty()
    return track(items, what, total, console=console, transient=True, disable=not is_shown)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal's stderr that something goes on whose end nobody can tell; as `steps`."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
