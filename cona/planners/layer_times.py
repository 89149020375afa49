"""Times of a chain of layers, and sums over its contiguous runs.

Matrices over stages have shape [L+1, L+1] and are indexed [first, last] for layers [first, last).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.cost.costs import Costs
from cona.cost.gpus import Floats
from cona.cost.measured_costs import embedding_time


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Seconds of one micro-batch under one (tp, mbs)."""

    forward: Floats
    """Forward pass of every layer, shape [L]."""
    both: Floats
    """Forward and backward pass of every layer, shape [L]."""
    embedding: float
    """Forward and backward pass of the embedding."""
    head: float
    """Forward and backward pass of head and loss."""

    @classmethod
    def of(cls, costs: Costs, num_layers: int, tp: int, mbs: int) -> LayerTimes:
        """Return the times under one (tp, mbs); raises ConfigError: the costs lack them."""
        layers = range(num_layers)
        return cls(
            forward=np.array([costs.layer_time(i, tp, mbs, "forward") for i in layers]),
            both=np.array([costs.layer_time(i, tp, mbs, "both") for i in layers]),
            embedding=embedding_time(costs, tp, mbs, "both"),
            head=costs.head_time(tp, mbs, "both"),
        )


def stage_lengths(num_layers: int) -> Floats:
    """Return the layers of every stage, shape [L+1, L+1]; below 1 where there is no stage."""
    cuts = np.arange(num_layers + 1, dtype=float)
    return cuts[None, :] - cuts[:, None]


def ranges(values: Floats) -> Floats:
    """Return the sums over [first, last), shape [L+1, L+1]; inf where that is empty.

    Args:
        values: one per layer, shape [L].
    """
    prefix = np.concatenate([[0.0], np.cumsum(values)])
    sums = prefix[None, :] - prefix[:, None]
    return np.where(stage_lengths(len(values)) > 0, sums, np.inf)


def cheapest_sums(values: Floats) -> Floats:
    """Return the sums of the n smallest of [first, last), shape [L+1, L+1, L+1], [first, last, n].

    Args:
        values: one per layer, shape [L].
    """
    size = len(values) + 1
    sums = np.zeros((size, size, size))
    for first in range(size):
        for last in range(first + 1, size):
            sums[first, last, 1 : last - first + 1] = np.cumsum(np.sort(values[first:last]))
    return sums
