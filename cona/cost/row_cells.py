"""Cells of a file of rows: parsed by column, a bad one refused or kept as its row's reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cona.errors import ConfigError

MAX_COUNT = 10**9
"""Larger counts are no rows of this world, and their products leave 64 bits."""

_EMPTY = ("", "nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "<NA>")
_NO_COUNT = (*_EMPTY, "None", "none")


@dataclass
class Cells:
    """The cells of a file.

    A bad cell raises ConfigError, or, where the reader is lenient, becomes the problem of its row
    and is read as a harmless value.
    """

    raw: pd.DataFrame
    """The rows as they were written, numbers or text."""
    where: str
    """The file, for errors."""
    is_lenient: bool = False
    problems: pd.Series[str] = field(init=False)
    """The first problem of each row; empty: none."""

    def __post_init__(self) -> None:
        self.problems = pd.Series("", index=self.raw.index, dtype=object)

    def counts(self, name: str, *, is_required: bool) -> pd.Series[float]:
        """Return a column of positive whole numbers; NaN where an optional cell is empty."""
        codes, distinct = pd.factorize(self.raw[name], use_na_sentinel=False)
        is_empty = np.array([_is(cell, _NO_COUNT) for cell in distinct], bool)[codes]
        numbers = pd.to_numeric(pd.Series(distinct), errors="coerce").to_numpy(float)
        values = pd.Series(numbers[codes], index=self.raw.index)
        is_whole = (values >= 1) & (values <= MAX_COUNT) & (values % 1 == 0)
        is_bad = ~is_whole & (~is_empty | is_required)
        rule = f"must be a whole number of at least 1 and at most {MAX_COUNT:g}"
        self.flag(name, is_bad.to_numpy(bool), rule)
        return values.mask(is_bad, 1.0)

    def times(self, name: str) -> pd.Series[float]:
        """Return a column of times above 0; NaN for a lenient reader, who does not use them."""
        if self.is_lenient:
            return pd.Series(np.nan, index=self.raw.index)
        values = pd.to_numeric(self.raw[name], errors="coerce").astype(float)
        is_bad = ~(np.isfinite(values.to_numpy()) & (values.to_numpy() > 0))
        self.flag(name, is_bad, "a time must be above 0")
        return values

    def words(self, name: str, default: str | None) -> pd.Series[str]:
        """Return a column of words, the default where it is missing or empty.

        Where the default is None, an empty cell is bad.
        """
        if name not in self.raw.columns:
            return pd.Series(default or "", index=self.raw.index, dtype=object)
        cells = each(self.raw[name], lambda cell: "" if _is(cell, _EMPTY) else str(cell).strip())
        is_empty = cells == ""
        if default is None:
            self.flag(name, is_empty.to_numpy(bool), "must name one, e.g. A100-80GB")
        return cells.mask(is_empty, default or "")

    def translate(
        self, words: pd.Series[str], meaning: Callable[[str], Any], name: str, default: Any
    ) -> pd.Series[Any]:
        """Translate a column of words, each distinct one once; unknown ones are bad."""
        known: dict[str, Any] = {}
        for word in words.unique():
            try:
                known[word] = meaning(word)
            except ConfigError as error:
                known[word] = default
                self.note((words == word).to_numpy(bool), f"column '{name}': {error}")
        return words.map(known)

    def flag(self, name: str, is_bad: NDArray[np.bool_], rule: str) -> None:
        """Refuse the first bad cell of a column, or keep each as its row's problem."""
        for place in np.flatnonzero(is_bad):
            cell = self.raw[name].iloc[place]
            shown = "an empty cell" if _is(cell, ("",)) and isinstance(cell, str) else str(cell)
            self._note(int(place), f"{name} = {shown}: {rule}")

    def note(self, is_bad: NDArray[np.bool_], problem: str) -> None:
        """Refuse or keep a problem that rows share."""
        for place in np.flatnonzero(is_bad):
            self._note(int(place), problem)

    def _note(self, place: int, problem: str) -> None:
        if not self.is_lenient:  # line 1 is the header
            raise ConfigError(f"{self.where}, line {place + 2}: {problem}")
        if not self.problems.iat[place]:
            self.problems.iat[place] = problem


def _is(cell: Any, texts: tuple[str, ...]) -> bool:
    return cell.strip() in texts if isinstance(cell, str) else bool(pd.isna(cell))


def each(cells: pd.Series[Any], meaning: Callable[[Any], Any]) -> pd.Series[Any]:
    """Return what a function makes of each cell of a column, called once for equal ones."""
    codes, distinct = pd.factorize(cells, use_na_sentinel=False)
    known = np.empty(len(distinct), object)
    known[:] = [meaning(cell) for cell in distinct]
    return pd.Series(known[codes], index=cells.index, dtype=object)
