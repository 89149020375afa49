"""The four column formats of iteration times, and how a file's format is recognised.

Source: cost-model.md, data for calibration and checking
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cona.errors import ConfigError
from cona.specs import ClusterSpec


@dataclass(frozen=True, kw_only=True)
class Format:
    """A column format: what its files leave unsaid."""

    name: str
    """The group of its rows, where no column names one."""
    precision: str = "fp16"
    recompute: str = "none"
    dist: str = "ddp"
    launch_profile: str = "megatron-deepspeed"
    """The software stack whose kernel-launch floor the rows pay."""
    gpu_column: str = "gpu_type"
    """Names each row's GPU."""
    gpu: str | None = "a100-80g"
    """GPU where no cell says; None: a cell must. ASSUMED for vTrain, whose pages say A100 only."""
    gpus_per_node: int = 8
    is_measured: bool = True
    """Its times were measured; False: a model's answers, on which nothing may be fitted."""


PUBLISHED = Format(name="published", precision="bf16", launch_profile="tuned", gpu=None)
CALCULON = Format(
    name="calculon",
    recompute="full",
    dist="zero1",
    gpu_column="system",
    gpu=None,
    is_measured=False,
)
VTRAIN_MULTI = Format(name="vtrain-multi-node", recompute="full", launch_profile="tuned")
VTRAIN_SINGLE = Format(name="vtrain-single-node")

_PUBLISHED_ONLY = frozenset(
    ("source", "mlp", "kv_heads", "dist", "precision", "iteration_seconds", "reported", "notes")
)
"""Columns of published results; a file with two of them is one, even without its GPUs."""


def format_of(columns: Collection[str], where: str, cluster: ClusterSpec | None) -> Format:
    """Return the format of a file with what a cluster says in place of its silence.

    Args:
        columns: names of the file's columns.
        where: the file, for errors.
        cluster: says the GPU type and the GPUs per node where no cell does.

    Raises:
        ConfigError: published results without a column of GPUs, and no cluster says them.
    """
    form = _recognised(columns)
    if cluster:
        return replace(form, gpu=cluster.gpu, gpus_per_node=cluster.gpus_per_node)
    if form is PUBLISHED and "gpu_type" not in columns:
        raise ConfigError(
            f"{where}: column 'gpu_type' is missing: published results must name each row's GPU, "
            "e.g. A100-80GB; `cona predict` also takes it from --cluster"
        )
    return form


def _recognised(columns: Collection[str]) -> Format:
    if "gpu_type" in columns:
        return PUBLISHED
    if "system" in columns:
        return CALCULON
    if "iteration_ms" not in columns and len(_PUBLISHED_ONLY & set(columns)) > 1:
        return PUBLISHED
    return VTRAIN_MULTI if "params_b" in columns else VTRAIN_SINGLE
