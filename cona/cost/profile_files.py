"""The two files of a profile: what they must hold, and how they are read.

Source: baselines.md; `docs/baselines.md` lists keys and columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from cona import config
from cona.errors import ConfigError, nearest
from cona.specs import Count, LinkSpec, ModelSpec, NonNegative, Positive, Spec, TrainingSpec

SizePair = Annotated[str, Field(pattern=r"^\d+, ?\d+$")]
"""A measured size as text: ``tp,mbs``."""


class LinkProfile(Spec):
    """One tier of a measured network."""

    bandwidth_gb_s: Positive
    """Measured bandwidth in GB/s (1e9 bytes per second) in one direction."""
    latency_us: NonNegative = 0.0
    """Latency of one message or collective in microseconds."""

    @property
    def spec(self) -> LinkSpec:
        """The link as clusters state it; a measured bandwidth is reached in full."""
        return LinkSpec(
            bandwidth_gb_s=self.bandwidth_gb_s, efficiency=1.0, latency_us=self.latency_us
        )


class ShapeProfile(Spec):
    """The shape of the model that was measured."""

    num_layers: Count
    """Transformer layers; layers.csv has two more: embedding and head."""
    hidden_size: Count
    """Width of the residual stream, h."""
    num_heads: Count
    """Attention heads."""
    num_kv_heads: Count | None = None
    """Key/value heads; None: as many as attention heads."""
    ffn_size: Count | None = None
    """Inner width of the feed-forward block; None: 4h."""
    vocab_size: Count
    """Tokens of the vocabulary, V."""
    seq_length: Count
    """Tokens per sample, s."""
    family: Literal["gpt", "bert", "llama"] = "gpt"
    """Kind of layers."""

    def spec(self, name: str) -> ModelSpec:
        """Return the model; it is planned for and never trained."""
        content = self.model_dump() | {
            "name": name,
            "description": "model of a profile",
            "tied_embeddings": False,  # both ends are counted as they were measured
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "ffn_size": self.ffn_size or 4 * self.hidden_size,
            "training": TrainingSpec(base_lr=1.0, min_lr=0.0, decay_tokens=1),
            "source": "profile.yaml",
        }
        return config.validate(ModelSpec, content, where="profile.yaml: model")


class ProfileSpec(Spec):
    """profile.yaml: what was measured of the whole, and on what."""

    model: ShapeProfile
    gpus_per_node: Count
    """GPUs of a node."""
    gpu_memory_gb: Positive
    """Memory of one GPU in GB (1e9 bytes): the limit."""
    intra_node: LinkProfile
    """Link between GPUs of one node."""
    inter_node: LinkProfile
    """Link between nodes, as one GPU sees it."""
    optimizer_ms: NonNegative
    """The optimizer's step of the whole model on one GPU, milliseconds."""
    forward_backward_ms: NonNegative | dict[SizePair, NonNegative]
    """One micro-batch through the whole model: a number, or one for each ``tp,mbs``."""
    batch_generator_ms: NonNegative = 0.0
    """Fetching one micro-batch, milliseconds."""


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One line of layers.csv: a layer at one tensor-parallel degree and micro-batch."""

    layer: int
    """0: embedding; 1 to num_layers: transformer layers; num_layers + 1: head."""
    tp: int
    mbs: int
    """Samples of the micro-batch."""
    forward_ms: float
    backward_ms: float
    memory_mb: float
    """MB (1e6 bytes) per GPU."""
    params_bytes: float
    """Bytes of the layer's weights, over all tensor-parallel GPUs."""


COLUMNS = tuple(field.name for field in fields(LayerRow))
WHOLE = {"layer": 0, "tp": 1, "mbs": 1}
"""Columns of whole numbers, with the least of each."""

Rows = dict[tuple[int, int], dict[int, LayerRow]]
"""Rows of layers.csv by (tp, mbs), then by layer."""


def read_rows(path: Path, num_layers: int) -> Rows:
    """Read layers.csv.

    Args:
        path: the file.
        num_layers: transformer layers of the model.

    Raises:
        ConfigError: no such file, a column or a layer is missing, a line is given twice, or a
            cell is no number.
    """
    found: Rows = {}
    for where, row in _lines(path):
        rows = found.setdefault((row.tp, row.mbs), {})
        if row.layer in rows:
            raise ConfigError(f"{where}: layer {row.layer} at tp {row.tp}, mbs {row.mbs} is twice")
        if row.layer > num_layers + 1:
            last = num_layers + 1
            raise ConfigError(f"{where}: layer {row.layer}: profile.yaml has layers 0 to {last}")
        rows[row.layer] = row
    for (tp, mbs), rows in found.items():
        missing = next((layer for layer in range(num_layers + 2) if layer not in rows), None)
        if missing is not None:
            raise ConfigError(f"{path}: layer {missing} is missing at tp {tp}, mbs {mbs}")
        if not any(row.forward_ms + row.backward_ms for row in rows.values()):
            raise ConfigError(f"{path}: no layer takes any time at tp {tp}, mbs {mbs}")
    if not found:
        raise ConfigError(f"{path}: no row; expected layers 0 to {num_layers + 1}")
    return found


def _lines(path: Path) -> Iterator[tuple[str, LayerRow]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text: {error.reason}") from error
    if "\0" in text:
        raise ConfigError(f"{path}: not text: it holds zero bytes")
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        names, rows = reader.fieldnames or (), [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: not CSV: {error}") from error
    for column in COLUMNS:
        if column not in names:
            raise ConfigError(f"{path}: column '{column}' is missing: {nearest(column, names)}")
    for line_num, cells in rows:
        where = f"{path}:{line_num}"
        if None in cells:
            raise ConfigError(f"{where}: more than {len(names)} cells; the header has {len(names)}")
        values = {column: _number(where, column, cells[column]) for column in COLUMNS}
        yield where, LayerRow(**values)  # type: ignore[arg-type]


def _number(where: str, column: str, cell: str | None) -> float:
    least, is_whole = WHOLE.get(column, 0), column in WHOLE
    try:
        value = float(cell or "")
    except ValueError:
        value = math.nan
    if not least <= value < math.inf or (is_whole and value != int(value)):
        kind = "whole number" if is_whole else "number"
        raise ConfigError(f"{where}: {column} = '{cell}': expected a {kind} of at least {least}")
    return int(value) if is_whole else value
