"""Which rows of a CSV of measured iterations are of one model on one cluster.

Source: issue 3, item 5.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques

if TYPE_CHECKING:
    import pandas as pd

SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "seq_length")
"""What a row must share with the model; its vocabulary is often not stated."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a CSV holds for one model on one cluster."""

    times_s: dict[Strategy, float]
    """Seconds per iteration by strategy, techniques included."""
    profile: str
    """The software stack of most rows, one of ``cona.cost.constants.PROFILES``."""


def measured(path: Path, model: ModelSpec, cluster: ClusterSpec) -> Measured:
    """Return the iterations that a CSV holds for one model on one cluster.

    A row counts if it is of the model's shape, in 16-bit precision, on the cluster's GPU type, and
    if the cluster has as many GPUs, as many of them in a node. Of several rows of one strategy the
    median counts.

    Args:
        path: a CSV in any of the formats of ``cona.cost.rows``.
        model: the model that is priced.
        cluster: the target cluster.

    Raises:
        ConfigError: the file cannot be read, holds no times, or has no row that counts.
    """
    from cona.cost.rows import read_rows  # pandas: a second that only tables pay

    rows = read_rows(path)
    if rows["iteration_s"].isna().any():
        raise ConfigError(f"{path}: no column of times; expected iteration_s in seconds")
    times: dict[Strategy, list[float]] = defaultdict(list)
    counting = rows[_counts(rows, model, cluster)]
    if counting.empty:
        raise ConfigError(f"{path}: {_none_counts(rows, model, cluster)}")
    for row in counting.to_dict("records"):
        times[strategy_of(row)].append(row["iteration_s"])
    return Measured(
        times_s={strategy: statistics.median(found) for strategy, found in times.items()},
        profile=str(counting["launch_profile"].mode()[0]),
    )


def strategy_of(row: dict[Any, Any]) -> Strategy:
    """Return the strategy of a normalised row, techniques included; raises ConfigError."""
    techniques = Techniques(
        zero_stage=int(row["zero_stage"]),
        recompute=row["recompute"],
        sequence_parallel=bool(row["sequence_parallel"]),
        virtual_stages=int(row["virtual_stages"]),
        context_parallel=int(row["cp"]),
    )
    sizes = {name: int(row[name]) for name in ("dp", "tp", "pp", "mbs", "gbs")}
    return Strategy(**sizes, techniques=techniques)


def _counts(rows: pd.DataFrame, model: ModelSpec, cluster: ClusterSpec) -> pd.Series[bool]:
    node = rows[["gpus_per_node", "num_gpus"]].min(axis=1)
    same = _has_shape(rows, model) & (rows["gpu"] == cluster.gpu) & (rows["precision"] != "fp8")
    fits = rows["num_gpus"] <= cluster.num_gpus
    return same & fits & (node == rows["num_gpus"].clip(upper=cluster.gpus_per_node))


def _has_shape(rows: pd.DataFrame, model: ModelSpec) -> pd.Series[bool]:
    return (rows[list(SHAPE)] == [getattr(model, name) for name in SHAPE]).all(axis=1)


def _none_counts(rows: pd.DataFrame, model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return what no row is, and what the nearest row is: the one that agrees in most columns."""
    wanted = {name: getattr(model, name) for name in SHAPE}
    wanted |= {"gpu": cluster.gpu, "gpus_per_node": cluster.gpus_per_node}
    agreement = sum((rows[name] == value).astype(int) for name, value in wanted.items())
    row = rows.loc[agreement.idxmax()]
    wanted["num_gpus"] = min(cluster.num_gpus, int(row["num_gpus"]))
    other = ", ".join(f"{name} {row[name]}" for name in wanted if row[name] != wanted[name])
    described = f"{model.name} (num_layers {model.num_layers}, hidden_size {model.hidden_size})"
    return (
        f"no row is of {described} on up to {cluster.num_gpus} {cluster.gpu} as in {cluster.name}; "
        f"the nearest differs in {other or 'its precision'}"
    )
