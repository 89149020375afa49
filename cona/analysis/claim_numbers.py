"""What a measure gives: the numbers of one claim for one model."""

from __future__ import annotations

from dataclasses import dataclass

from cona.analysis.ttp import label


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one claim for one model."""

    ours: str
    """As text: the centre over seeds, its interval, and of what."""
    brief: str = "–"
    """The same in a few words, without intervals."""
    strict: float | None = None
    """The number that the limit `reproduced` is for; None: the target was not reached."""
    mild: float | None = None
    """The number that the limit `same_direction` is for."""
    target: float | None = None
    """Perplexity that TTPs are to; None: the measure has none."""
    num_seeds: int = 0
    """Seeds of the method."""
    num_reached: int = 0
    """Seeds at which it reached the target."""
    num_pairs: int = 0
    """Common seeds of the comparison that has the fewest."""
    why_none: str | None = None
    """Why there is nothing to compare; None: there is."""


def nothing(why: str) -> Measured:
    """Return that there is nothing to compare, and why."""
    return Measured(ours="–", why_none=why)


def target_text(measured: Measured) -> str:
    """Return the target as text, nothing where the measure has none."""
    return "" if measured.target is None else label(measured.target)
