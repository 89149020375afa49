"""What communication costs on each tier of a cluster's network.

Source: cost-model.md, Calculon's model: lat + bytes * c * (1 + o/n) / (bandwidth * efficiency).
"""

from __future__ import annotations

from dataclasses import dataclass

from cona.cost.gpus import Floats
from cona.specs import ClusterSpec, LinkSpec


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One tier: the GPUs that it connects and what its collectives cost."""

    name: str
    """Named in errors."""
    size: int
    """GPUs that it connects: the largest degree that may be placed on it."""
    link: LinkSpec
    """Bandwidth, efficiency and latency."""
    is_ring: bool
    """Collectives run as rings between peers (NVLink); False: the switch moves each byte once."""

    def p2p_s(self, num_bytes: Floats) -> Floats:
        """Return the seconds of a message of ``num_bytes`` between two GPUs."""
        bytes_per_s = self.link.bandwidth_gb_s * 1e9 * self.link.efficiency
        return self.link.latency_us * 1e-6 + num_bytes / bytes_per_s

    def all_reduce_s(self, num_bytes: Floats, ranks: Floats) -> Floats:
        """Return the seconds of an all-reduce of ``num_bytes`` on each of ``ranks`` GPUs."""
        return self.p2p_s(num_bytes * (2 * (1 - 1 / ranks)) if self.is_ring else num_bytes)

    def gather_s(self, num_bytes: Floats, ranks: Floats) -> Floats:
        """Return the seconds of one reduce-scatter or all-gather (both cost the same).

        Args:
            num_bytes: the whole buffer, before scattering or after gathering.
            ranks: GPUs that take part.
        """
        return self.p2p_s(num_bytes * (1.5 * (1 - 1 / ranks)) if self.is_ring else num_bytes)


@dataclass(frozen=True, kw_only=True)
class Network:
    """The tier on which each parallel dimension communicates."""

    tp: Tier
    pp: Tier
    dp: Tier

    @classmethod
    def of(cls, cluster: ClusterSpec) -> Network:
        """Place tp inside a node; pp and dp between nodes where there are several."""
        intra = Tier(
            name="intra-node tier",
            size=cluster.gpus_per_node,
            link=cluster.intra_node,
            is_ring=True,
        )
        if cluster.num_nodes == 1:
            return cls(tp=intra, pp=intra, dp=intra)
        inter = Tier(
            name="inter-node tier",
            size=cluster.num_gpus,
            link=cluster.inter_node,
            is_ring=False,
        )
        return cls(tp=intra, pp=inter, dp=inter)
