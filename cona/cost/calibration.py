"""Fit the constants of the improved model to measured rows: robust regression on log time.

A weak pull keeps every constant near its counted or data-sheet value where the rows say nothing.

Source: cost-model.md, calibration
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cona.cost.constants import SAME_CHIP, Calibration, Constants, Residual, load, shipped
from cona.cost.folds import folds, shapes
from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs
from cona.cost.iteration_time import parts_s
from cona.cost.row_inputs import row_inputs
from cona.cost.stages import Stages
from cona.errors import ConfigError

__all__ = [
    "Calibration",
    "fit",
    "fit_constants",
    "held_out",
    "load",
    "predicted_s",
    "shipped",
    "usable",
]

START = Constants(
    gemm_efficiency=0.75,
    gemm_edge=300,
    flash_efficiency=0.35,
    attention_bytes=28,  # 11 B forward, 17 B backward: counted over scores, softmax and dropout
    elementwise_bytes=100,
    unfused_elementwise_bytes=300,
    loss_bytes=30,  # counted over fp32 logits, their softmax and their gradient
    unsplit_loss_bytes=90,
    hbm_efficiency=0.8,  # ASSUMED: what streaming kernels reach
    optimizer_bytes=31,
    intra_rate=1.1,
    inter_rate=0.8,
    overlap=0.8,
    tp_sync_s=5e-5,  # ASSUMED
    head_layers=0.6,
    launch_s={"debug": 6e-3, "megatron-deepspeed": 3.1e-3, "tuned": 4e-4},
)
"""Where the fit starts and what it is pulled to."""

FREE = (
    "gemm_efficiency",
    "gemm_edge",
    "flash_efficiency",
    "elementwise_bytes",
    "unfused_elementwise_bytes",
    "unsplit_loss_bytes",
    "intra_rate",
    "inter_rate",
    "overlap",
    "head_layers",
    "launch_s.debug",
    "launch_s.megatron-deepspeed",
)
"""The constants that rows determine; the others stay as in START."""

MAX_GROUP_WEIGHT = 15
"""Rows that a group counts for at most: rows of one source share its errors."""

PULL = 0.2
"""Weight of a constant's distance, in log, from its start, as a residual."""

SOFT = 0.05
"""Log error beyond which the loss grows linearly (soft L1)."""

MIN_ROWS = 5
"""Fewer rows than this cannot calibrate."""


def fit(frame: pd.DataFrame, gpu: str, *, num_folds: int = 5, source: str = "") -> Calibration:
    """Fit the constants of a GPU type and measure how well they hold on rows left out.

    Args:
        frame: rows of ``cona.cost.rows.read_rows`` with times; other GPU types and fp8 are
            skipped.
        gpu: GPU type; types of the same chip are fitted together.
        num_folds: folds of whole shapes for the errors.
        source: where the rows come from; empty: the names of their files.

    Raises:
        ConfigError: fewer than MIN_ROWS rows of the GPU type have a time.

    Source: cost-model.md, calibration
    """
    chip = SAME_CHIP.get(gpu, gpu)
    rows = usable(frame, chip)
    errors = held_out(rows, num_folds)
    can_check = bool(np.isfinite(errors).all())
    constants = fit_constants(rows)
    fit_errors = _seconds(row_inputs(rows), constants) / rows["iteration_s"].to_numpy(float) - 1
    return Calibration(
        gpu=chip,
        calibrated=True,
        source=source or ", ".join(sorted({str(name) for name in rows["source_file"]})),
        date=date.today().isoformat(),
        fitted=tuple(name for name in FREE if not _is_start(constants, name)),
        constants=constants,
        residuals=tuple(_residuals(rows, errors, np.abs(fit_errors))) if can_check else (),
    )


def usable(frame: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """Return the measured rows of a GPU type (or of the same chip), without fp8.

    Raises:
        ConfigError: fewer than MIN_ROWS are left.
    """
    chips = frame["gpu"].map(lambda name: SAME_CHIP.get(name, name))
    is_kept = (chips == gpu) & frame["iteration_s"].notna() & (frame["precision"] != "fp8")
    is_kept &= frame["is_measured"]
    if is_kept.sum() < MIN_ROWS:
        known = ", ".join(sorted(set(chips)))
        raise ConfigError(
            f"{is_kept.sum()} rows of GPU '{gpu}' have a time: a calibration needs {MIN_ROWS}; "
            f"the data hold {known}"
        )
    return frame[is_kept].reset_index(drop=True)


def held_out(rows: pd.DataFrame, num_folds: int, seed: int = 0) -> Floats:
    """Return each row's T over its measured time from a fit without the row's shape, minus 1.

    NaN where nothing can be left out: all rows are of one shape and one cell (tp, mbs).
    """
    if shapes(rows).nunique() < 2:
        return np.full(len(rows), np.nan)
    fold_of, seconds = folds(rows, num_folds, seed), np.zeros(len(rows))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        seconds[out] = predicted_s(rows[out], fitted_on=rows[~out])
    return seconds / rows["iteration_s"].to_numpy(float) - 1


def predicted_s(rows: pd.DataFrame, *, fitted_on: pd.DataFrame) -> Floats:
    """Return T of rows in seconds, shape [rows], with constants fitted on other rows."""
    return _seconds(row_inputs(rows), fit_constants(fitted_on))


def fit_constants(rows: pd.DataFrame) -> Constants:
    """Return the constants that fit rows best; rows must not be empty."""
    inputs, weights = row_inputs(rows), _weights(rows)
    log_times = np.log(rows["iteration_s"].to_numpy(float))
    start = np.log([_get(START, name) for name in FREE])
    upper = np.array([np.log(0.98) if name in _SHARES else np.inf for name in FREE])

    def residuals(logs: Floats) -> Floats:
        errors = np.log(_seconds(inputs, _with(np.exp(logs)))) - log_times
        return np.concatenate([weights * errors, PULL * (logs - start)])

    found = least_squares(
        residuals,
        start,
        loss="soft_l1",
        f_scale=SOFT,
        bounds=(start - 3, np.minimum(start + 3, upper)),
    )
    return _with(np.exp(found.x))


_SHARES = ("gemm_efficiency", "flash_efficiency", "overlap")


def _get(constants: Constants, name: str) -> float:
    field, _, key = name.partition(".")
    value = getattr(constants, field)
    return float(value[key] if key else value)


def _is_start(constants: Constants, name: str) -> bool:
    """Whether a constant stayed where the fit starts: no row depends on it."""
    return bool(np.isclose(_get(constants, name), _get(START, name), rtol=1e-6, atol=0))


def _with(values: Floats) -> Constants:
    """Return START with the free constants replaced, in FREE order."""
    launch_s, changes = dict(START.launch_s), {}
    for name, value in zip(FREE, values, strict=True):
        field, _, key = name.partition(".")
        if key:
            launch_s[key] = float(value)
        else:
            changes[field] = float(value)
    return START.model_copy(update=changes | {"launch_s": launch_s})


def _weights(rows: pd.DataFrame) -> NDArray[np.float64]:
    size = rows.groupby("group")["group"].transform("size").to_numpy(float)
    return np.asarray(np.sqrt(np.minimum(size, MAX_GROUP_WEIGHT) / size), float)


def _seconds(x: Inputs, constants: Constants) -> Floats:
    return np.asarray(sum(parts_s(x, constants, Stages.of(x)).values()), float)


def _residuals(rows: pd.DataFrame, errors: Floats, fit_errors: Floats) -> Iterator[Residual]:
    for group, index in rows.groupby("group").indices.items():
        out = np.abs(errors[index])
        yield Residual(
            group=str(group),
            num_rows=len(index),
            median=round(float(np.median(out)), 4),
            p90=round(float(np.quantile(out, 0.9)), 4),
            fit_median=round(float(np.median(fit_errors[index])), 4),
        )
