"""Rows of iteration times, from any of four column formats, in one frame with one vocabulary.

The formats are those of vTrain's single-node and multi-node tables, of published benchmark pages,
and of Calculon's own answers; `docs/row-formats.md` lists their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cona.cost import row_words
from cona.cost.gpu_names import memory_gb
from cona.cost.row_cells import MAX_COUNT, Cells, each
from cona.cost.row_formats import Format, format_of
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


def read_measured(paths: Sequence[Path]) -> tuple[pd.DataFrame, list[Path]]:
    """Read files of measured rows into one frame, leaving out a model's answers.

    Args:
        paths: CSVs in any of the four formats.

    Returns:
        The rows of all files with measurements, and the files that hold a model's answers.

    Raises:
        ConfigError: see ``read_rows``; or no file holds measurements.
    """
    frames = {path: read_rows(path) for path in paths}
    kept = [frame for frame in frames.values() if frame["is_measured"].all()]
    answers = [path for path, frame in frames.items() if not frame["is_measured"].all()]
    if not kept:
        named = ", ".join(map(str, answers))
        raise ConfigError(f"{named}: a model's answers; expected a file of measured times")
    return pd.concat(kept, ignore_index=True), answers


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV as text, cell by cell. Raises ConfigError: no such file, not a CSV, or no row."""
    try:
        raw = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{path}: the file is empty; expected a header and rows") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a CSV: {' '.join(str(error).split())}") from error
    if not isinstance(raw.index, pd.RangeIndex):
        raise ConfigError(f"{path}: not a CSV: its rows have more cells than its header")
    if raw.empty:
        raise ConfigError(f"{path}: no row below the header; expected at least one")
    return raw


def normalise(
    raw: pd.DataFrame, *, where: str, cluster: ClusterSpec | None = None, is_lenient: bool = False
) -> pd.DataFrame:
    """Turn the rows of one of the four formats into the columns that the cost model reads.

    Args:
        raw: the rows as they were written, numbers or text.
        where: the file, for errors and the column ``source_file``.
        cluster: says the GPU type and the GPUs per node where no cell does.
        is_lenient: a bad cell becomes the row's ``problem``, and times are not used, hence not
            checked.

    Returns:
        family, num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, seq_length,
        vocab_size, gpu, gpu_memory_gb, num_gpus, gpus_per_node, precision, tp, pp, dp, cp,
        virtual_stages, mbs, gbs, recompute, zero_stage, sequence_parallel, overlap,
        flash_attention, launch_profile, group, source_file, iteration_s, is_measured, problem;
        then the other original columns, a column ``recompute`` as ``recompute_written``.

    Raises:
        ConfigError: see ``read_rows``; if lenient, only for a missing column.
    """
    _check_columns(raw, where)
    form = format_of(set(raw.columns), where, cluster)
    cells = Cells(raw, where, is_lenient)
    counts = {name: cells.counts(name, is_required=True) for name in REQUIRED}
    optional = [name for name in OPTIONAL_COUNTS if name in raw.columns]
    counts |= {name: cells.counts(name, is_required=False) for name in optional}
    parts = _model_columns(cells, counts) | _place_columns(cells, form, counts)
    parts |= {name: counts[name].astype(int) for name in ("tp", "pp", "dp", "mbs", "gbs")}
    parts |= _technique_columns(cells, form, counts)
    parts |= {"group": cells.words("group", form.name), "source_file": where}
    parts |= {"iteration_s": _iteration_s(cells), "is_measured": form.is_measured}
    frame = pd.DataFrame(parts | {"problem": cells.problems}, index=raw.index)
    others = raw.rename(columns={"recompute": "recompute_written"})
    return frame.join(others[[name for name in others.columns if name not in frame.columns]])


def _check_columns(raw: pd.DataFrame, where: str) -> None:
    for name in REQUIRED:
        if name not in raw.columns:
            raise ConfigError(
                f"{where}: column '{name}' is missing: {nearest(name, map(str, raw.columns))}; "
                f"every format has {', '.join(REQUIRED)}"
            )


def _iteration_s(cells: Cells) -> pd.Series[float]:
    """Return the measured seconds; NaN in every row if no column holds times."""
    name = next((name for name in TIME_UNITS_S if name in cells.raw.columns), None)
    if name is None:
        return pd.Series(np.nan, index=cells.raw.index)
    return cells.times(name) * TIME_UNITS_S[name]


def _or(counts: dict[str, pd.Series[float]], name: str, default: Any) -> pd.Series[int]:
    """Return an optional column of counts, the default where it is missing or empty."""
    like = counts["layers"]
    column = counts.get(name, pd.Series(np.nan, index=like.index))
    return column.fillna(default).astype(int)


def _model_columns(cells: Cells, counts: dict[str, pd.Series[float]]) -> dict[str, Any]:
    is_swiglu = _says(cells.words("mlp", "gelu"), r"swiglu")
    is_bert = each(cells.words("model", ""), lambda name: "bert" in name.lower())
    return {
        "family": np.select([is_bert.astype(bool), is_swiglu], ["bert", "llama"], "gpt"),
        "num_layers": counts["layers"].astype(int),
        "hidden_size": counts["hidden"].astype(int),
        "num_heads": counts["heads"].astype(int),
        "num_kv_heads": _or(counts, "kv_heads", counts["heads"]),
        "ffn_size": _or(counts, "ffn", 4 * counts["hidden"]),
        "seq_length": counts["seq"].astype(int),
        "vocab_size": _or(counts, "vocab", ASSUMED_VOCAB),
    }


def _place_columns(
    cells: Cells, form: Format, counts: dict[str, pd.Series[float]]
) -> dict[str, Any]:
    """Return the GPUs: their type, memory, number and nodes."""
    named = cells.words(form.gpu_column, form.gpu)
    per_node = each(named, row_words.gpus_in_node).astype(float)
    is_none = (per_node < 1) | (per_node > MAX_COUNT)
    if is_none.any():
        cells.flag(form.gpu_column, is_none.to_numpy(), "a node has at least 1 GPU")
    per_node = per_node.mask(is_none).fillna(form.gpus_per_node)
    cp = _or(counts, "cp", 1)
    degrees = counts["tp"] * counts["pp"] * counts["dp"] * cp
    is_huge = degrees > MAX_COUNT
    cells.note(is_huge.to_numpy(), f"dp*tp*pp*cp exceeds {MAX_COUNT:g} GPUs")
    return {
        "gpu": cells.translate(named, row_words.gpu_type, form.gpu_column, ""),
        "gpu_memory_gb": each(named, memory_gb).astype(float),
        "num_gpus": _or(counts, "gpus", degrees.mask(is_huge, 1)),
        "gpus_per_node": _or(counts, "gpus_per_node", per_node),
        "cp": cp,
    }


def _technique_columns(
    cells: Cells, form: Format, counts: dict[str, pd.Series[float]]
) -> dict[str, Any]:
    recompute = each(cells.words("recompute", form.recompute), str.lower)
    dist = each(cells.words("dist", form.dist), str.lower)
    notes = cells.words("notes", "")
    precision = cells.words("precision", form.precision)
    zero_stage = cells.translate(dist, row_words.zero_stage, "dist", 0)
    is_fsdp = _says(dist, r"[fh]sdp\d?")
    has_flash = _says(recompute, "flash") | is_fsdp & ~_denies(notes, _FLASH) | _says(notes, _FLASH)
    return {
        "precision": cells.translate(precision, row_words.precision, "precision", "bf16"),
        "virtual_stages": _or(counts, "vpp", 1),
        "recompute": cells.translate(recompute, row_words.recompute, "recompute", "none"),
        "zero_stage": zero_stage.where((counts["dp"] > 1) | (form.gpu_column != "system"), 0),
        "sequence_parallel": each(recompute, row_words.is_sequence_parallel).astype(bool),
        "overlap": _says(dist, "overlap") | is_fsdp & ~_denies(dist, "overlap"),
        "flash_attention": has_flash,
        "launch_profile": np.where(_says(notes, _DEBUG), "debug", form.launch_profile),
    }


_FLASH = r"flash(attention|attn)?\d?"
_DEBUG = r"deterministic|debug"


def _says(texts: pd.Series[str], word: str) -> pd.Series[bool]:
    """Whether each text says a word, as a regular expression, without denying it."""
    return each(texts, lambda text: row_words.says(text, word)).astype(bool)


def _denies(texts: pd.Series[str], word: str) -> pd.Series[bool]:
    """Whether each text has a word and says it is not so."""
    return each(texts, lambda text: row_words.denies(text, word)).astype(bool)
