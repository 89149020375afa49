"""Predictions for rows of anybody's CSV: each row brings its own model, cluster and strategy.

Source: issue 3, item 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from cona.cost import TimeModel, time_model
from cona.cost.base import AnalyticalModel, Columns
from cona.cost.calculon import Calculon
from cona.cost.constants import SAME_CHIP, Calibration, load
from cona.cost.predictions import RULES, predict, reason
from cona.cost.ranking import PART_WORDS, memory_bytes
from cona.cost.row_inputs import row_inputs
from cona.cost.row_specs import cluster_of, model_of, why_no_case
from cona.cost.table_rows import strategy_of
from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques

Cells = dict[str, Any]
"""What a prediction adds to a row, by column; a column that is missing stays empty."""

COLUMNS = (
    "predicted_s",
    "predicted_memory_bytes",
    *(f"predicted_{part}_s" for part in PART_WORDS),
    "calibrated",
    "feasible",
    "reason",
)
MEMORY_RULE = len(RULES) - 1
"""The rule that leaves a strategy its time: it could run with more memory."""


def predict_rows(
    rows: pd.DataFrame,
    preset: str,
    cluster: ClusterSpec | None = None,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Predict time, memory and breakdown of normalised rows.

    Args:
        rows: from ``cona.cost.rows.read_rows``, shape [rows].
        preset: a name of ``cona.cost.time_models()``.
        cluster: whose links to assume; None: those usual for the row's GPU type.
        calibration: constants of ``improved`` for rows of its GPU type; None: those shipped.

    Returns:
        predicted_s, predicted_memory_bytes, predicted_<part>_s, calibrated (the constants were
        fitted to the GPU type), feasible and reason, with the index of ``rows``. A row that only
        lacks memory keeps its seconds.

    Raises:
        ConfigError: no such preset, or no row is of the calibration's GPU type.
    """
    reasons = why_no_case(rows)
    usable = rows[reasons == ""]
    if preset == "improved":
        found = _at_once(usable, cluster, calibration)
    elif calibration is not None:
        raise ConfigError(f"preset '{preset}' takes no calibration: only 'improved' does")
    else:
        found = _one_by_one(usable, preset, cluster)
    table = pd.concat([pd.DataFrame(columns=list(COLUMNS), dtype=object), *found])
    table = table.reindex(index=rows.index, columns=list(COLUMNS))
    table["feasible"] = table["feasible"].eq(True)
    return table.assign(reason=table["reason"].where(reasons == "", reasons))


# --- the vectorised model -----------------------------------------------------------------------


def _at_once(
    rows: pd.DataFrame, cluster: ClusterSpec | None, calibration: Calibration | None
) -> Iterator[pd.DataFrame]:
    """Yield the cells of the rows of each GPU type under `improved`."""
    chips = rows["gpu"].map(lambda gpu: SAME_CHIP.get(gpu, gpu))
    if calibration is not None and calibration.gpu not in set(chips):
        raise ConfigError(
            f"the calibration is for GPU '{calibration.gpu}'; the rows are of "
            f"{', '.join(sorted(set(chips))) or 'none that is known'}"
        )
    for chip, group in rows.groupby(chips):
        is_given = calibration is not None and calibration.gpu == chip
        constants = calibration if calibration is not None and is_given else load(str(chip))
        yield _chip_cells(group, cluster, constants)


def _chip_cells(
    rows: pd.DataFrame, cluster: ClusterSpec | None, calibration: Calibration
) -> pd.DataFrame:
    inputs = row_inputs(rows, cluster)
    found = predict(inputs, calibration)
    has_time = found.feasible | (found.rule == MEMORY_RULE)
    columns: Cells = {"predicted_s": np.where(has_time, found.time_s, np.nan)}
    columns |= {f"predicted_{p}_s": np.where(has_time, s, np.nan) for p, s in found.parts.items()}
    reasons = np.full(len(rows), "", object)
    for i in np.flatnonzero(~found.feasible):
        reasons[i] = reason(inputs, found, int(i))
    columns |= {"predicted_memory_bytes": found.memory_bytes, "calibrated": calibration.calibrated}
    columns |= {"feasible": found.feasible, "reason": reasons}
    return pd.DataFrame(columns, index=rows.index)


# --- models of one strategy after another -------------------------------------------------------


def _one_by_one(
    rows: pd.DataFrame, preset: str, cluster: ClusterSpec | None
) -> Iterator[pd.DataFrame]:
    """Yield the cells of all rows under any other model, built once for equal rows."""
    models = cache(partial(_model, preset))
    table = []
    for row in rows.to_dict("records"):
        strategy = strategy_of(row)
        prices = models(model_of(row), cluster_of(row, cluster), strategy.techniques)
        table.append(_cells(prices, strategy))
    yield pd.DataFrame(table, index=rows.index)


def _model(
    preset: str, model: ModelSpec, cluster: ClusterSpec, techniques: Techniques
) -> TimeModel:
    """Return the time model of a row: Calculon knows recomputation and ZeRO-1 as settings."""
    prices = time_model(preset, model, cluster)
    if isinstance(prices, Calculon):
        is_sharded = techniques.zero_stage > 0
        return type(prices)(model, cluster, recompute=techniques.recompute, is_sharded=is_sharded)
    return prices


def _cells(prices: TimeModel, strategy: Strategy) -> Cells:
    why = prices.why_not(strategy) or ""
    cells: Cells = {"predicted_memory_bytes": memory_bytes(prices, strategy)}
    cells |= {"feasible": not why, "reason": why}
    if why and not (isinstance(prices, AnalyticalModel) and "GB of memory" in why):
        return cells
    if isinstance(prices, AnalyticalModel):
        columns = Columns.of([strategy])
        parts_s = {name: float(part[0]) for name, part in prices.parts_s(columns).items()}
    else:
        parts_s = prices.breakdown(strategy)
    cells |= {f"predicted_{part}_s": seconds for part, seconds in parts_s.items()}
    return cells | {"predicted_s": sum(parts_s.values())}
