"""Rows of iteration times, from any of four column formats, in one frame with one vocabulary.

The formats are those of vTrain's single-node and multi-node tables, of published benchmark pages,
and of Calculon's own answers; `docs/row-formats.md` lists their columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cona.cost import row_words
from cona.cost.gpu_names import memory_gb
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec

REQUIRED = ("layers", "hidden", "heads", "seq", "dp", "tp", "pp", "mbs", "gbs")
"""Columns that every format has: positive whole numbers."""

OPTIONAL_COUNTS = ("gpus", "gpus_per_node", "kv_heads", "ffn", "vocab", "vpp", "cp")
"""Columns of positive whole numbers that may be missing, or empty in a row."""

TIME_UNITS_S = {"iteration_s": 1.0, "iteration_seconds": 1.0, "seconds": 1.0, "iteration_ms": 1e-3}
"""Seconds of one unit of each column that may hold the measured time of an iteration."""

ASSUMED_VOCAB = 51200
"""ASSUMED: vocabulary where a file states none (vTrain names 50257 or 51200)."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A column format: how it is recognised, and what its files leave unsaid."""

    name: str
    """The group of its rows, where no column names one."""
    mark: str | None
    """The column that only this format has; None: what all others are."""
    precision: str = "fp16"
    recompute: str = "none"
    dist: str = "ddp"
    launch_profile: str = "megatron-deepspeed"
    """The software stack whose kernel-launch floor the rows pay."""
    gpu: str = "a100-80g"
    """ASSUMED for vTrain, whose pages say A100 only."""
    gpus_per_node: int = 8


FORMATS = (
    Format(name="published", mark="gpu_type", precision="bf16", launch_profile="tuned"),
    Format(name="calculon", mark="system", recompute="full", dist="zero1"),
    Format(name="vtrain-multi-node", mark="params_b", recompute="full", launch_profile="tuned"),
    Format(name="vtrain-single-node", mark=None),
)
"""In the order in which they are tried."""


def read_rows(path: Path, cluster: ClusterSpec | None = None) -> pd.DataFrame:
    """Read a CSV in any of the four formats into one frame, a row for each of its lines.

    Args:
        path: the CSV.
        cluster: says the GPU type and the GPUs per node where no column does.

    Returns:
        A frame in the order of the file: the normalised columns of ``normalise`` and every
        original column that has another name.

    Raises:
        ConfigError: the file cannot be read or is empty, lacks a column, or holds a value that is
            no positive (whole) number or no known word.

    Source: cost-model.md, data for calibration and checking
    """
    return normalise(read_csv(path), where=str(path), cluster=cluster)


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV as it is. Raises ConfigError: no such file, not a CSV, or no row."""
    try:
        raw = pd.read_csv(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{path}: the file is empty; expected a header and rows") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a CSV: {' '.join(str(error).split())}") from error
    if raw.empty:
        raise ConfigError(f"{path}: no row below the header; expected at least one")
    return raw


def normalise(raw: pd.DataFrame, *, where: str, cluster: ClusterSpec | None = None) -> pd.DataFrame:
    """Turn the rows of one of the four formats into the columns that the cost model reads.

    Args:
        raw: the rows as they were written.
        where: the file, for errors and the column ``source_file``.
        cluster: says the GPU type and the GPUs per node where no column does.

    Returns:
        family, num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, seq_length,
        vocab_size, gpu, gpu_memory_gb, num_gpus, gpus_per_node, precision, tp, pp, dp, cp,
        virtual_stages, mbs, gbs, recompute, zero_stage, sequence_parallel, overlap,
        flash_attention, launch_profile, group, source_file, iteration_s; then the other original
        columns, a column ``recompute`` as ``recompute_written``.

    Raises:
        ConfigError: see ``read_rows``.
    """
    _check_columns(raw, where)
    form = next(f for f in FORMATS if f.mark is None or f.mark in raw.columns)
    if cluster:
        form = replace(form, gpu=cluster.gpu, gpus_per_node=cluster.gpus_per_node)
    counts = {name: _counts(raw, name, where) for name in REQUIRED}
    counts |= {name: _counts(raw, name, where) for name in OPTIONAL_COUNTS if name in raw.columns}
    parts = _model_columns(raw, counts) | _place_columns(raw, form, counts, where)
    parts |= {name: counts[name].astype(int) for name in ("tp", "pp", "dp", "mbs", "gbs")}
    parts |= _technique_columns(raw, form, counts, where)
    parts["group"] = _words(raw, "group", form.name)
    parts["source_file"] = where
    parts["iteration_s"] = _iteration_s(raw, where)
    frame = pd.DataFrame(parts, index=raw.index)
    others = raw.rename(columns={"recompute": "recompute_written"})
    return frame.join(others[[name for name in others.columns if name not in frame.columns]])


def _check_columns(raw: pd.DataFrame, where: str) -> None:
    for name in REQUIRED:
        if name not in raw.columns:
            raise ConfigError(
                f"{where}: column '{name}' is missing: {nearest(name, map(str, raw.columns))}; "
                f"every format has {', '.join(REQUIRED)}"
            )


def _counts(raw: pd.DataFrame, name: str, where: str) -> pd.Series[float]:
    """Return a column of positive whole numbers; empty cells stay NaN where they may."""
    values = pd.to_numeric(raw[name], errors="coerce")
    is_bad = (values.isna() & raw[name].notna()) | (values < 1) | (values % 1 != 0) & values.notna()
    if name in REQUIRED:
        is_bad |= values.isna()
    _refuse(raw, name, is_bad.to_numpy(), "must be a whole number of at least 1", where)
    return values.astype(float)


def _refuse(raw: pd.DataFrame, name: str, is_bad: NDArray[np.bool_], rule: str, where: str) -> None:
    """Raise ConfigError for the first bad cell of a column; line 1 is the header."""
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise ConfigError(f"{where}, line {row + 2}: {name} = {raw[name].iloc[row]!s}: {rule}")


def _iteration_s(raw: pd.DataFrame, where: str) -> pd.Series[float]:
    """Return the measured seconds; NaN in every row if no column holds times."""
    name = next((name for name in TIME_UNITS_S if name in raw.columns), None)
    if name is None:
        return pd.Series(np.nan, index=raw.index)
    values = pd.to_numeric(raw[name], errors="coerce").astype(float)
    is_bad = ~(np.isfinite(values.to_numpy()) & (values.to_numpy() > 0))
    _refuse(raw, name, is_bad, "a time must be above 0", where)
    return values * TIME_UNITS_S[name]


def _words(raw: pd.DataFrame, name: str, default: str) -> pd.Series[str]:
    """Return a column of words, the default where it is missing or empty."""
    if name not in raw.columns:
        return pd.Series(default, index=raw.index, dtype=object)
    return raw[name].astype(object).where(raw[name].notna(), default).astype(str).str.strip()


def _or(counts: dict[str, pd.Series[float]], name: str, default: Any) -> pd.Series[int]:
    """Return an optional column of counts, the default where it is missing or empty."""
    like = counts["layers"]
    column = counts.get(name, pd.Series(np.nan, index=like.index))
    return column.fillna(default).astype(int)


def _model_columns(raw: pd.DataFrame, counts: dict[str, pd.Series[float]]) -> dict[str, Any]:
    is_swiglu = _words(raw, "mlp", "gelu").str.lower() == "swiglu"
    is_bert = _words(raw, "model", "").str.lower().str.contains("bert")
    return {
        "family": np.select([is_bert, is_swiglu], ["bert", "llama"], "gpt"),
        "num_layers": counts["layers"].astype(int),
        "hidden_size": counts["hidden"].astype(int),
        "num_heads": counts["heads"].astype(int),
        "num_kv_heads": _or(counts, "kv_heads", counts["heads"]),
        "ffn_size": _or(counts, "ffn", 4 * counts["hidden"]),
        "seq_length": counts["seq"].astype(int),
        "vocab_size": _or(counts, "vocab", ASSUMED_VOCAB),
    }


def _place_columns(
    raw: pd.DataFrame, form: Format, counts: dict[str, pd.Series[float]], where: str
) -> dict[str, Any]:
    """Return the GPUs: their type, memory, number and nodes."""
    named = _words(raw, "gpu_type", form.gpu)
    if form.mark == "system":
        named = raw["system"].astype(str)
    per_node = named.str.extract(r"(\d+)gpu", expand=False).astype(float).fillna(form.gpus_per_node)
    degrees = counts["tp"] * counts["pp"] * counts["dp"]
    cp = _or(counts, "cp", 1)
    return {
        "gpu": _each(named, row_words.gpu_type, "gpu_type", where),
        "gpu_memory_gb": named.map(memory_gb).astype(float),
        "num_gpus": _or(counts, "gpus", degrees * cp),
        "gpus_per_node": _or(counts, "gpus_per_node", per_node),
        "cp": cp,
    }


def _technique_columns(
    raw: pd.DataFrame, form: Format, counts: dict[str, pd.Series[float]], where: str
) -> dict[str, Any]:
    recompute = _words(raw, "recompute", form.recompute).str.lower()
    dist = _words(raw, "dist", form.dist).str.lower()
    notes = _words(raw, "notes", "").str.lower()
    zero_stage = _each(dist, row_words.zero_stage, "dist", where)
    is_debug = notes.str.contains("deterministic|debug")
    return {
        "precision": _each(
            _words(raw, "precision", form.precision), row_words.precision, "precision", where
        ),
        "virtual_stages": _or(counts, "vpp", 1),
        "recompute": _each(recompute, row_words.recompute, "recompute", where),
        "zero_stage": zero_stage.where((counts["dp"] > 1) | (form.mark != "system"), 0),
        "sequence_parallel": recompute.str.contains(r"\+sp", regex=True),
        "overlap": dist.str.contains("overlap|fsdp|hsdp", regex=True),
        "flash_attention": recompute.eq("flash")
        | dist.str.contains("fsdp")
        | notes.str.contains(r"\bflash", regex=True),
        "launch_profile": np.where(is_debug, "debug", form.launch_profile),
    }


def _each(
    words: pd.Series[str], meaning: Callable[[str], Any], column: str, where: str
) -> pd.Series[Any]:
    """Translate a column of words, each distinct one once; an error names the column's file."""
    try:
        known = {word: meaning(word) for word in words.unique()}
    except ConfigError as error:
        raise ConfigError(f"{where}: column '{column}': {error}") from error
    return words.map(known)
