"""What a profile measures and an equation does not: the embedding, memory by layer, sizes.

Planners whose originals work on profiles ask here; costs from a cost model get a substitute.

Source: baselines.md.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cona.cost.costs import Costs, End, Part
from cona.strategy import Strategy, Techniques


@runtime_checkable
class MeasuredCosts(Protocol):
    """Costs that know more than `Costs`, because they were measured layer by layer."""

    @property
    def tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that were measured, ascending."""

    @property
    def mbss(self) -> tuple[int, ...]:
        """Micro-batches that were measured, samples, ascending."""

    def embedding_time(self, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of the embedding for one micro-batch."""

    def layer_memory(self, layer: int | End, tp: int, mbs: int) -> float:
        """Return the bytes per GPU that were measured for a layer or an end of the model."""


def is_known(costs: Costs, tp: int, mbs: int) -> bool:
    """Return whether costs cover a degree and a micro-batch; a model's cover all."""
    return not isinstance(costs, MeasuredCosts) or (tp in costs.tps and mbs in costs.mbss)


def smallest_mbs(costs: Costs) -> int:
    """Return the smallest micro-batch that costs cover, samples."""
    return costs.mbss[0] if isinstance(costs, MeasuredCosts) else 1


def embedding_time(costs: Costs, tp: int, mbs: int, part: Part) -> float:
    """Return the seconds of the embedding for one micro-batch.

    ASSUMED: none where costs come from a cost model; a look-up moves next to nothing.
    """
    return costs.embedding_time(tp, mbs, part) if isinstance(costs, MeasuredCosts) else 0.0


def layer_memory(
    costs: Costs, layer: int | End, tp: int, mbs: int, *, num_layers: int, techniques: Techniques
) -> float:
    """Return what a profiler sees of a layer on one GPU: 16-bit weights and one micro-batch.

    Args:
        costs: measured, or a model's: then activations are what a second micro-batch in flight
            adds, and logits what the last stage adds to that (ASSUMED).
        layer: 0 to num_layers - 1, "embedding" or "head".
        tp: tensor-parallel degree.
        mbs: samples of the micro-batch.
        num_layers: transformer layers of the model.
        techniques: they say which activations are kept.

    Returns:
        Bytes, without gradients and optimizer.
    """
    if isinstance(costs, MeasuredCosts):
        return costs.layer_memory(layer, tp, mbs)
    weights = costs.params_bytes(layer) / tp

    def alone(stage: int, size: int, count: int) -> float:
        """A stage of one layer that is given ``count`` micro-batches of ``size`` samples."""
        strategy = Strategy(
            dp=1, tp=tp, pp=num_layers, mbs=size, gbs=size * count, techniques=techniques
        )
        return costs.memory(stage, strategy)

    if layer == "embedding":
        return weights
    if layer == "head":
        last = num_layers - 1
        grown = (alone(stage, 2 * mbs, 1) - alone(stage, mbs, 1) for stage in (last, 0))
        return weights + (max(next(grown) - next(grown), 0.0) if last else 0.0)
    return weights + alone(0, mbs, 2) - alone(0, mbs, 1)
