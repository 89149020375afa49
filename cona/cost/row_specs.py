"""The model, the cluster and the strategy of a normalised row, and whether it has them.

Source: issue 3, item 8.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

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
        raise ConfigError(_unknown_gpu(row["gpu"]))
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


def why_no_case(rows: pd.DataFrame) -> pd.Series[str]:
    """Return why each normalised row describes nothing that could run; empty if it does.

    Args:
        rows: from ``cona.cost.rows.normalise``, shape [rows].
    """
    reasons = rows["problem"].astype(object)
    for found in (_model_reasons(rows), _gpu_reasons(rows), _layout_reasons(rows)):
        reasons = reasons.mask(reasons == "", found)
    return reasons


def _model_reasons(rows: pd.DataFrame) -> pd.Series[str]:
    """Return why each row's model is none, each distinct model checked once."""
    models = rows.groupby(list(_MODEL_FACTS), sort=False)
    firsts = rows[~rows.duplicated(list(_MODEL_FACTS))].to_dict("records")
    number = models.ngroup()
    return number.map(dict(enumerate(map(_why_no_model, firsts)))).astype(object)


def _why_no_model(row: dict[Any, Any]) -> str:
    try:
        model_of(row)
    except ConfigError as error:
        return str(error)
    return ""


def _gpu_reasons(rows: pd.DataFrame) -> pd.Series[str]:
    reasons = {gpu: "" if gpu in NODES else _unknown_gpu(gpu) for gpu in rows["gpu"].unique()}
    return rows["gpu"].map(reasons).astype(object)


def _unknown_gpu(gpu: str) -> str:
    return f"unknown GPU '{gpu}': valid: {', '.join(NODES)}"


def _layout_reasons(rows: pd.DataFrame) -> pd.Series[str]:
    reasons = pd.Series("", index=rows.index, dtype=object)
    used = rows["dp"] * rows["tp"] * rows["pp"] * rows["cp"]
    does_not_divide = rows["gbs"] % (rows["dp"] * rows["mbs"]) != 0
    is_none = (does_not_divide | (used != rows["num_gpus"])).to_numpy(bool)
    bad = rows[is_none]
    reasons.update(pd.Series([_why_no_layout(row) for row in bad.to_dict("records")], bad.index))
    return reasons


def _why_no_layout(row: dict[Any, Any]) -> str:
    try:
        num_gpus = strategy_of(row).num_gpus
    except ConfigError as error:
        return str(error)
    return f"dp*tp*pp*cp = {num_gpus} is not the number of GPUs, {row['num_gpus']}"
