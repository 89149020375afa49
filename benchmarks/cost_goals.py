"""The goals of the cost model's accuracy, its worst groups, and what the choice of folds changes.

Used by ``benchmarks/cost_accuracy.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Row = list[object]

MIN_ROWS = 5
"""Smaller groups are left out of the tables by group; the totals hold them."""

NUM_WORST = 5
"""Groups in the table of the worst."""


def _is_published(rows: pd.DataFrame) -> Mask:
    return ~rows["group"].str.startswith("vtrain").to_numpy()


TOTALS: dict[str, Callable[[pd.DataFrame], Mask]] = {
    "vTrain single node": lambda r: (r["group"] == "vtrain-single-node").to_numpy(),
    "published, seq <= 2048": lambda r: _is_published(r) & (r["seq_length"] <= 2048).to_numpy(),
    "published, all": _is_published,
    "multi-node, all": lambda r: (r["num_gpus"] > r["gpus_per_node"]).to_numpy(),
}
"""Rows that have a goal, of all GPU types together."""

GOALS = (
    ("vTrain single node", 0.5, 0.04),
    ("vTrain single node", 0.9, 0.16),
    ("published, seq <= 2048", 0.5, 0.06),
    ("published, all", 0.5, 0.07),
    ("published, all", 0.9, 0.30),
    ("multi-node, all", 0.5, 0.06),
)
"""Rows, quantile of the absolute relative error, and the error that it may not exceed."""


def goals(rows: pd.DataFrame, errors: Floats) -> Iterator[Row]:
    """Yield each goal with what was measured; goals whose rows are not there say so.

    Args:
        rows: measured rows, shape [rows].
        errors: absolute relative errors on rows left out; NaN: not predicted.
    """
    for name, quantile, limit in GOALS:
        found = errors[TOTALS[name](rows)]
        found = found[np.isfinite(found)]
        what = "median" if quantile == 0.5 else f"p{100 * quantile:.0f}"
        if not len(found):
            yield [name, what, 0, "", f"{limit:.0%}", "no rows"]
            continue
        value = float(np.quantile(found, quantile))
        verdict = "pass" if value <= limit else "FAIL"
        yield [name, what, len(found), f"{value:.1%}", f"{limit:.0%}", verdict]


def worst(rows: pd.DataFrame, errors: Floats) -> list[Row]:
    """Return the groups with the largest median errors, small groups too."""
    by_group = pd.Series(errors, index=rows.index).groupby(rows["group"])
    table = by_group.agg(["size", "median", "max"]).dropna()
    table = table.sort_values("median", ascending=False).head(NUM_WORST)
    return [
        [group, int(size), f"{median:.1%}", f"{largest:.1%}"]
        for group, size, median, largest in table.itertuples(name=None)
    ]


def spread(rows: pd.DataFrame, errors_by_seed: dict[int, Floats]) -> Iterator[Row]:
    """Yield the medians of rows left out under each seed of the folds, and their range.

    Args:
        rows: measured rows, shape [rows].
        errors_by_seed: absolute relative errors of the same rows.
    """
    for name in ("vTrain single node", "published, seq <= 2048", "published, all"):
        mask = TOTALS[name](rows)
        if mask.any():
            medians = [float(np.nanmedian(errors[mask])) for errors in errors_by_seed.values()]
            shown = [f"{median:.2%}" for median in medians]
            yield [name, *shown, f"{max(medians) - min(medians):.2%}"]
