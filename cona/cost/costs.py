"""What planners ask about a model on a cluster: times of its pieces, sizes, links, memory.

Source: baselines.md. Each planner combines these by its own formula.
"""

from __future__ import annotations

from typing import Literal, Protocol

from cona.specs import LinkSpec
from cona.strategy import Strategy

Part = Literal["forward", "backward", "both"]
"""Which pass; backward without any recomputation, which a planner adds as one more forward."""

LinkTier = Literal["intra_node", "inter_node"]
"""Between GPUs of one node, or between nodes."""

End = Literal["embedding", "head"]
"""What stands before and after the layers."""


class Costs(Protocol):
    """The costs that a planner may ask for; from a cost model, or from a measured profile.

    ``layer`` counts from 0 to num_layers - 1; ``mbs`` is in samples.
    """

    def layer_time(self, layer: int, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of one layer and micro-batch, tensor-parallel exchange included."""

    def head_time(self, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of LM head and loss for one micro-batch."""

    def forward_backward_time(self, tp: int, mbs: int) -> float:
        """Return the seconds of one micro-batch through the whole model on one stage."""

    def batch_generator_time(self) -> float:
        """Return the seconds that fetching one micro-batch adds."""

    def optimizer(self, tp: int, pp: int) -> float:
        """Return the seconds of the optimizer's step on the fullest stage, not sharded over dp."""

    def p2p(self, num_bytes: float) -> float:
        """Return the seconds of a message of ``num_bytes`` between neighbouring stages.

        Where stages are on several nodes, it is the slowest hop.
        """

    def allreduce(self, num_bytes: float, n: int) -> float:
        """Return the seconds of an all-reduce of ``num_bytes`` on each of n consecutive ranks."""

    def params_bytes(self, layer: int | End) -> int:
        """Return the bytes of 16-bit weights of a layer or an end of the model, over all tp."""

    def link(self, tier: LinkTier) -> LinkSpec:
        """Return the link of a tier."""

    def memory(self, stage: int, strategy: Strategy) -> float:
        """Return the bytes that a strategy needs on one GPU of a pipeline stage.

        Times of pieces never depend on it: each planner has its own rule of what fits.
        """
