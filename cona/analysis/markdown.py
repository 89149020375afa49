"""Small pieces of Markdown that the tables share."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

NOT_REACHED = "not reached"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with some significant digits and no exponent; a dash for None."""
    if value is None:
        return "–"
    return f"{float(f'{value:.{digits}g}'):,.12g}"


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage with two decimals; a dash for None."""
    return "–" if fraction is None else f"{fraction:+.2%}"


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals; a dash for None."""
    return "–" if value is None else f"{value:,.2f}"


def yes(value: bool) -> str:
    """Return a truth value as a word for a table."""
    return "yes" if value else "no"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of text cells."""
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def page(*blocks: str) -> str:
    """Join blocks of Markdown with blank lines between them."""
    return "\n\n".join(b for b in blocks if b) + "\n"
