"""Which measured rows a calibration leaves out together: whole shapes.

Source: issue 3, must show
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SWEEP_ROWS = 100
"""A group of at least so many rows of one width is a sweep over layouts."""


def shapes(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the name of each row's shape; folds leave out whole ones.

    A sweep has one width: its cells are (tp, mbs); so are those of rows of one shape only.
    """
    shape = rows["hidden_size"].astype(str) + "x" + rows["num_layers"].astype(str)
    by_group = rows.groupby("group")["hidden_size"]
    is_sweep = (by_group.transform("size") >= SWEEP_ROWS) & (by_group.transform("nunique") == 1)
    cell = "tp" + rows["tp"].astype(str) + "-mbs" + rows["mbs"].astype(str)
    return shape.where(~is_sweep, cell) if shape.nunique() > 1 else cell


def folds(rows: pd.DataFrame, num_folds: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the fold of each row, shape [rows]; rows of one shape share a fold."""
    names = shapes(rows)
    order = np.array(sorted(names.unique()), object)
    np.random.default_rng(seed).shuffle(order)
    fold_of = {name: k % num_folds for k, name in enumerate(order)}
    return names.map(fold_of).to_numpy(np.int64)
