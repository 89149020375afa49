"""The model, the cluster and the strategy of a normalised row, and whether it has them.

Source: issue 3, item 8.
"""

from __future__ import annotations

import math
from typing import Any

from cona import config
from cona.cost.row_inputs import NODES
from cona.cost.table_rows import strategy_of
from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec

_TRAINING = {"base_lr": 3e-4, "min_lr": 3e-5, "decay_tokens": 1_000_000_000}
"""ASSUMED: rows say nothing about the optimiser, and no price depends on it."""

_MODEL_FACTS = (
    "family",
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "ffn_size",
    "vocab_size",
    "seq_length",
)


def model_of(row: dict[Any, Any]) -> ModelSpec:
    """Return the model of a normalised row; raises ConfigError if its sizes do not divide."""
    facts = {name: row[name] for name in _MODEL_FACTS}
    facts |= {"name": "row", "description": "row of a CSV", "source": row["source_file"]}
    return config.validate(ModelSpec, facts | {"training": _TRAINING}, where="model")


def cluster_of(row: dict[Any, Any], given: ClusterSpec | None) -> ClusterSpec:
    """Return a cluster with the GPUs of a normalised row.

    Args:
        row: its GPU type, memory, number of GPUs and GPUs per node count.
        given: whose links to take; None: those usual for the GPU type.

    Raises:
        ConfigError: the GPU type is unknown.
    """
    if row["gpu"] not in NODES:
        raise ConfigError(f"unknown GPU '{row['gpu']}': valid: {', '.join(NODES)}")
    links = given or config.load(ClusterSpec, NODES[row["gpu"]])
    # Calculon's system of two-GPU nodes puts dp and pp between nodes even for two GPUs.
    least_nodes = 2 if str(row.get("system", "")).endswith("gpu_node") else 1
    num_nodes = math.ceil(row["num_gpus"] / row["gpus_per_node"])
    facts = {
        "gpu": row["gpu"],
        "gpus_per_node": row["gpus_per_node"],
        "num_nodes": max(least_nodes, num_nodes),
    }
    if not math.isnan(row["gpu_memory_gb"]):
        facts["gpu_memory_gb"] = row["gpu_memory_gb"]
    return links.model_copy(update=facts)


def why_no_case(row: dict[Any, Any], cluster: ClusterSpec | None) -> str:
    """Return why a normalised row describes nothing that could run; empty if it does.

    Args:
        row: a normalised row.
        cluster: whose links to take; None: those usual for the GPU type.
    """
    try:
        model_of(row), cluster_of(row, cluster)
        num_gpus = strategy_of(row).num_gpus
    except ConfigError as error:
        return str(error)
    if num_gpus != row["num_gpus"]:
        return f"dp*tp*pp*cp = {num_gpus} is not the number of GPUs, {row['num_gpus']}"
    return ""
