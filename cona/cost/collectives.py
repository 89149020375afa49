"""What communication costs where its ranks really sit: inside a node, across nodes, or both.

Ranks are placed tp inside pp inside cp inside dp.

Source: cost-model.md, gaps 5 and 6
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.cost.constants import Constants
from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links of the rows' clusters; arrays of shape [rows] or [1]."""

    gpus_per_node: Floats
    intra_bytes_per_s: Floats
    inter_bytes_per_s: Floats
    intra_latency_s: Floats
    inter_latency_s: Floats

    @classmethod
    def of(cls, x: Inputs, c: Constants) -> Network:
        """Return the links at the rates that collectives reach."""
        return cls(
            gpus_per_node=x.gpus_per_node,
            intra_bytes_per_s=x.intra_bytes_per_s * c.intra_rate,
            inter_bytes_per_s=x.inter_bytes_per_s * c.inter_rate,
            intra_latency_s=x.intra_latency_s,
            inter_latency_s=x.inter_latency_s,
        )

    def gather_s(self, num_bytes: Floats, ranks: Floats, stride: Floats) -> Floats:
        """Return the seconds of one hierarchical ring reduce-scatter or all-gather.

        Ranks of one node share the work over NVLink; each then sends its share over its own NIC.
        An all-reduce is two of them.

        Args:
            num_bytes: the whole buffer, before scattering or after gathering.
            ranks: GPUs that take part; 1 costs nothing.
            stride: distance between the ranks of neighbours.
        """
        local = np.minimum(ranks, np.maximum(1.0, np.floor(self.gpus_per_node / stride)))
        nodes = ranks / local
        inside = num_bytes * (1 - 1 / local) / self.intra_bytes_per_s
        across = num_bytes / local * (1 - 1 / nodes) / self.inter_bytes_per_s
        latency = (local > 1) * self.intra_latency_s + (nodes - 1) * self.inter_latency_s
        return inside + across + latency

    def p2p_s(self, num_bytes: Floats, span: Floats) -> Floats:
        """Return the seconds of a message between neighbouring stages.

        Args:
            num_bytes: the message.
            span: GPUs from the first to the last of the pipeline; longer than a node, the
                slowest hop crosses nodes.
        """
        crosses = span > self.gpus_per_node
        inside = num_bytes / self.intra_bytes_per_s + self.intra_latency_s
        return np.where(crosses, num_bytes / self.inter_bytes_per_s + self.inter_latency_s, inside)
