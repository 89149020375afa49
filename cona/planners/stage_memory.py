"""Memory of a stage with any number of layers, from the costs of equal stages.

``Costs.memory`` knows equal stages only. Their memory is a sum of what a GPU needs anyway, what
each layer needs once and per micro-batch in flight, and what the two ends of the model need, so
a few equal pipelines tell these pieces apart.

Source: baselines.md, `memory(stage, s)`; cost-model.md, point 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cona.cost.gpus import Floats
from cona.planners.query import Query
from cona.strategy import Strategy, Techniques, divisors


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes on one GPU, piece by piece, under one (dp, tp, mbs) and its techniques."""

    base: float
    """What a GPU needs anyway: context and working buffers."""
    per_layer: float
    """Weights, gradients and optimizer state of a layer."""
    per_microbatch: float
    """Activations that a layer keeps of one micro-batch in flight."""
    first: float
    """What the first stage needs beside its layers: the embedding."""
    last: float
    """What the last stage needs beside its layers: the head and its logits."""
    alone: float
    """What one stage with both ends needs beside that; below 0 where the ends share a table."""

    def layer(self, in_flight: int) -> float:
        """Return the bytes of one layer with so many micro-batches in flight."""
        return self.per_layer + in_flight * self.per_microbatch

    def bytes(self, num_layers: int, in_flight: int) -> Floats:
        """Return the bytes of every contiguous stage of a model, shape [L+1, L+1].

        Args:
            num_layers: layers of the model, L.
            in_flight: micro-batches whose activations the stage keeps.
        """
        cuts = np.arange(num_layers + 1, dtype=float)
        total: Floats = self.base + (cuts[None, :] - cuts[:, None]) * self.layer(in_flight)
        total[0, :] += self.first
        total[:, -1] += self.last
        total[0, -1] += self.alone
        return total


def stage_memory(query: Query, dp: int, tp: int, mbs: int, techniques: Techniques) -> StageMemory:
    """Return the pieces of a stage's memory.

    Args:
        query: model and costs.
        dp, tp: degrees of every stage.
        mbs: samples of a micro-batch.
        techniques: what shards and recomputes.

    Raises:
        ConfigError: the costs know no memory for these sizes.
    """
    num_layers = query.model.num_layers

    def needs(stage: int, pp: int, in_flight: int = 1) -> float:
        gbs = dp * mbs * in_flight
        strategy = Strategy(dp=dp, tp=tp, pp=pp, mbs=mbs, gbs=gbs, techniques=techniques)
        return query.costs.memory(stage, strategy)

    first, last = needs(0, num_layers), needs(num_layers - 1, num_layers)
    if num_layers < 3:  # no stage without an end: count the fuller end twice
        inner, kept = min(first, last), 0.0
    else:
        inner = needs(1, num_layers)
        kept = needs(0, num_layers, 2) - first
    whole = needs(0, 1)
    layer = _layer_bytes(needs, num_layers, (first, inner, last), query.model.tied_embeddings)
    return StageMemory(
        base=inner - layer,
        per_layer=max(layer - kept, 0.0),
        per_microbatch=kept,
        first=first - inner,
        last=last - inner,
        alone=whole - (first + last - inner + (num_layers - 1) * layer),
    )


def _layer_bytes(
    needs: Callable[..., float], num_layers: int, ends: tuple[float, float, float], is_tied: bool
) -> float:
    """Bytes of one more layer, one micro-batch in flight.

    Args:
        needs: bytes of stage ``stage`` of ``pp`` equal ones.
        num_layers: layers of the model, L.
        ends: bytes of the first, an inner and the last of L stages.
        is_tied: whether one stage holds one vocabulary table, where two stages hold two.
    """
    first, inner, last = ends
    if num_layers == 1:
        return inner
    more = divisors(num_layers)[1]
    if more < num_layers:  # the same stage with more layers; it stays without the other end
        return (needs(0, num_layers // more) - first) / (more - 1)
    whole = needs(0, 1) - (last - inner)
    table = first - inner if is_tied else 0.0
    return (whole + table - first) / (num_layers - 1)
