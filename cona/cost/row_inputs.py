"""Inputs of the improved model from normalised rows, each with its own model and cluster.

Source: cost-model.md, data; issue 3, item 8
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pandas as pd

from cona import config
from cona.cost.constants import PROFILES
from cona.cost.gpus import Floats
from cona.cost.inputs import FUSED_LOGIT_BYTES, LOGIT_BYTES, SELECTIVE, Inputs, of_cluster
from cona.errors import ConfigError
from cona.specs import ClusterSpec

NODES = {
    "a100-80g": "dgx-a100",
    "a100-40g": "dgx-a100-40g",
    "h100-80g": "dgx-h100",
    "h200": "dgx-h200",
    "b200": "dgx-b200",
    "v100-32g": "dgx2-v100",
    "v100-16g": "dgx2-v100",
}
"""ASSUMED: the links of a GPU type where neither rows nor user name a cluster."""

HALF_LAYERS = ("selective_layer", "selective_op")
"""torchtitan's selective recomputation: every second layer, or every second product."""

_RENAMED = {
    "num_layers": "num_layers",
    "hidden": "hidden_size",
    "num_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "ffn": "ffn_size",
    "seq": "seq_length",
    "vocab": "vocab_size",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "virtual_stages": "virtual_stages",
    "mbs": "mbs",
    "gbs": "gbs",
    "zero_stage": "zero_stage",
    "sequence_parallel": "sequence_parallel",
    "overlap": "overlap",
    "flash": "flash_attention",
    "num_gpus": "num_gpus",
    "gpus_per_node": "gpus_per_node",
}


def row_inputs(rows: pd.DataFrame, cluster: ClusterSpec | None = None) -> Inputs:
    """Return the inputs of rows of ``cona.cost.rows.read_rows``.

    Args:
        rows: normalised rows, shape [rows].
        cluster: whose links to assume; None: those usual for the row's GPU type.

    Raises:
        ConfigError: a GPU type is unknown.
    """
    columns = {name: rows[column].to_numpy(float) for name, column in _RENAMED.items()}
    multiple = 128 * columns["tp"]
    columns["vocab"] = np.ceil(columns["vocab"] / multiple) * multiple
    columns["is_gated"] = (rows["family"] == "llama").to_numpy(float)
    columns["has_dropout"] = 1 - np.maximum(columns["is_gated"], columns["flash"])
    columns["logit_bytes"] = _logit_bytes(rows)
    columns["is_causal"] = (rows["family"] != "bert").to_numpy(float)
    columns["is_tied"] = 1 - columns["is_gated"]
    columns["profile"] = rows["launch_profile"].map(PROFILES.index).to_numpy(float)
    return Inputs(**(_cluster_columns(rows, cluster) | columns | _recompute(rows)))


def _logit_bytes(rows: pd.DataFrame) -> Floats:
    """Bytes kept of a logit. ASSUMED: the FSDP stacks (llm-foundry, torchtitan) fuse the loss."""
    if "dist" not in rows:
        return np.full(len(rows), float(LOGIT_BYTES))
    is_fused = rows["dist"].astype(str).str.strip().str.lower().str.startswith("fsdp")
    return np.where(is_fused, FUSED_LOGIT_BYTES, LOGIT_BYTES).astype(float)


def _recompute(rows: pd.DataFrame) -> dict[str, Floats]:
    """Shares of the forward pass computed again; some files name finer modes than ours."""
    shares = np.array([SELECTIVE[mode] for mode in rows["recompute"]], float).reshape(-1, 2)
    if "recompute_written" in rows:
        written = rows["recompute_written"].astype(str).str.strip().str.lower()
        shares[written.isin(HALF_LAYERS).to_numpy()] = 0.5
    return {"recompute_attention": shares[:, 0], "recompute_rest": shares[:, 1]}


def _cluster_columns(rows: pd.DataFrame, cluster: ClusterSpec | None) -> dict[str, Floats]:
    kinds = rows[["gpu", "precision", "gpu_memory_gb"]]
    codes = kinds.groupby(list(kinds.columns), sort=False, dropna=False).ngroup().to_numpy()
    found = [
        _node_columns(str(gpu), str(precision), float(memory_gb), cluster)
        for gpu, precision, memory_gb in kinds.drop_duplicates().to_numpy(object)
    ]
    return {name: np.array([kind[name][0] for kind in found])[codes] for name in found[0]}


@cache
def _usual(gpu: str) -> ClusterSpec:
    if gpu not in NODES:
        raise ConfigError(f"unknown GPU '{gpu}': valid: {', '.join(NODES)}")
    return config.load(ClusterSpec, NODES[gpu])


def _node_columns(
    gpu: str, precision: str, memory_gb: float, cluster: ClusterSpec | None
) -> dict[str, Floats]:
    """Columns of a row's GPU type with the links of a cluster; rows state its sizes."""
    changes: dict[str, object] = {"gpu": gpu}
    if not math.isnan(memory_gb):
        changes["gpu_memory_gb"] = memory_gb
    return of_cluster((cluster or _usual(gpu)).model_copy(update=changes), precision)
