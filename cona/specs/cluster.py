"""Clusters: their GPUs, and the links between them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cona.specs.base import Count, Name, NonNegative, Positive, Spec

LARGEST_CLUSTER = 2**17
"""GPUs: as many as the largest clusters have; all layouts of them are searched."""


class LinkSpec(Spec):
    """One tier of a network, as one GPU sees it."""

    bandwidth_gb_s: Positive
    """Bandwidth in GB/s (1e9 bytes per second) in one direction."""
    efficiency: Annotated[Positive, Field(le=1)]
    """Fraction of the bandwidth that large messages reach."""
    latency_us: NonNegative
    """Latency of one message or collective in microseconds."""


class ClusterSpec(Spec):
    """A homogeneous GPU cluster."""

    name: Name
    """Name on the command line and in results."""
    description: str
    """One line for `cona clusters`."""
    gpu: str
    """GPU type, one that the cost model knows (e.g. a100-80g)."""
    num_nodes: Count
    """Number of nodes."""
    gpus_per_node: Count
    """GPUs in each node."""
    gpu_memory_gb: Positive
    """Memory of one GPU in GB (1e9 bytes)."""
    intra_node: LinkSpec
    """Link between GPUs of one node."""
    inter_node: LinkSpec
    """Link between nodes, as one GPU sees it."""
    source: str
    """Where the figures come from."""

    @model_validator(mode="after")
    def _can_be_searched(self) -> ClusterSpec:
        if self.num_gpus > LARGEST_CLUSTER:
            raise ValueError(
                f"num_nodes*gpus_per_node = {self.num_nodes}*{self.gpus_per_node} exceeds "
                f"{LARGEST_CLUSTER} GPUs; nearest: "
                f"num_nodes {max(1, LARGEST_CLUSTER // self.gpus_per_node)}"
            )
        return self

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in the cluster, N."""
        return self.num_nodes * self.gpus_per_node
