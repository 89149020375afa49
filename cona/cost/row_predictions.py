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
    reasons = pd.Series([why_no_case(row, cluster) for row in _records(rows)], index=rows.index)
    usable = rows[reasons == ""]
    if preset == "improved":
        found = _at_once(usable, cluster, calibration)
    elif calibration is not None:
        raise ConfigError(f"preset '{preset}' takes no calibration: only 'improved' does")
    else:
        found = _one_by_one(usable, preset, cluster)
    cells = dict(found)
    blank = {place: {"feasible": False, "reason": why} for place, why in reasons.items()}
    table = [cells.get(place, blank[place]) for place in rows.index]
    return pd.DataFrame(table, index=rows.index, columns=list(COLUMNS))


def _records(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    return list(rows.to_dict("records"))


# --- the vectorised model -----------------------------------------------------------------------


def _at_once(
    rows: pd.DataFrame, cluster: ClusterSpec | None, calibration: Calibration | None
) -> Iterator[tuple[Any, Cells]]:
    """Yield the cells of each row under `improved`: one call for each GPU type."""
    chips = rows["gpu"].map(lambda gpu: SAME_CHIP.get(gpu, gpu))
    if calibration is not None and calibration.gpu not in set(chips):
        raise ConfigError(
            f"the calibration is for GPU '{calibration.gpu}'; the rows are of "
            f"{', '.join(sorted(set(chips))) or 'none that is known'}"
        )
    for chip, group in rows.groupby(chips):
        is_given = calibration is not None and calibration.gpu == chip
        constants = calibration if calibration is not None and is_given else load(str(chip))
        yield from _chip_cells(group, cluster, constants)


def _chip_cells(
    rows: pd.DataFrame, cluster: ClusterSpec | None, calibration: Calibration
) -> Iterator[tuple[Any, Cells]]:
    inputs = row_inputs(rows, cluster)
    found = predict(inputs, calibration)
    has_time = found.feasible | (found.rule == MEMORY_RULE)
    columns = {"predicted_s": np.where(has_time, found.time_s, np.nan)}
    columns |= {f"predicted_{p}_s": np.where(has_time, s, np.nan) for p, s in found.parts.items()}
    columns["predicted_memory_bytes"] = found.memory_bytes
    for i, place in enumerate(rows.index):
        cells: Cells = {name: column[i] for name, column in columns.items()}
        why = "" if found.feasible[i] else reason(inputs, found, i)
        cells["calibrated"] = calibration.calibrated
        yield place, cells | {"feasible": not why, "reason": why}


# --- models of one strategy after another -------------------------------------------------------


def _one_by_one(
    rows: pd.DataFrame, preset: str, cluster: ClusterSpec | None
) -> Iterator[tuple[Any, Cells]]:
    """Yield the cells of each row under any other model, built once for equal rows."""
    models = cache(partial(_model, preset))
    for place, row in zip(rows.index, _records(rows), strict=True):
        strategy = strategy_of(row)
        prices = models(model_of(row), cluster_of(row, cluster), strategy.techniques)
        yield place, _cells(prices, strategy)


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
