"""What a GPU can do: peak rates, and the fraction of them that an operation of a size reaches.

Source: cost-model.md, Calculon's model. The only place with facts about GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cona.errors import ConfigError, nearest

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of a GPU that works off an amount (FLOPs or bytes) at a size-dependent rate."""

    peak_per_s: float
    """Data-sheet rate: FLOP/s or bytes/s."""
    thresholds: tuple[float, ...]
    """Ascending sizes at which the efficiency steps up, in FLOPs or bytes."""
    efficiencies: tuple[float, ...]
    """Fraction of the peak below the first threshold and from each threshold on."""

    def time_s(self, amount: Floats) -> Floats:
        """Return the seconds of operations.

        Args:
            amount: FLOPs or bytes of each operation, any shape.
        """
        step = np.searchsorted(self.thresholds, amount, side="right")
        return amount / (self.peak_per_s * np.asarray(self.efficiencies)[step])


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU type as Calculon sees it: an operation computes, then moves its bytes."""

    matrix: Unit
    """Tensor cores, for matrix products."""
    vector: Unit
    """Everything else that computes."""
    memory: Unit
    """High-bandwidth memory."""
    source: str
    """Where the figures come from."""

    def gemm_s(self, flops: Floats, num_bytes: Floats) -> Floats:
        """Return the seconds of matrix products of ``flops`` that move ``num_bytes``."""
        return self.matrix.time_s(flops) + self.memory.time_s(num_bytes)

    def vector_s(self, flops: Floats, num_bytes: Floats) -> Floats:
        """Return the seconds of element-wise operations of ``flops`` that move ``num_bytes``."""
        return self.vector.time_s(flops) + self.memory.time_s(num_bytes)


def _gpu(*, matrix_tflops: float, vector_tflops: float, hbm_gb_s: float) -> Gpu:
    """Build a GPU with the efficiency steps that Calculon gives to both A100 and H100."""
    return Gpu(
        matrix=Unit(
            peak_per_s=matrix_tflops * 1e12,
            thresholds=(1e9, 16e9, 128e9),
            efficiencies=(0.1, 0.6, 0.9, 0.95),
        ),
        vector=Unit(
            peak_per_s=vector_tflops * 1e12,
            thresholds=(1e9, 16e9),
            efficiencies=(0.1, 0.5, 0.95),
        ),
        memory=Unit(
            peak_per_s=hbm_gb_s * 1e9,
            thresholds=(1e6, 10e6, 100e6),
            efficiencies=(0.3, 0.6, 0.75, 0.9),
        ),
        source="Calculon (Isaev et al. 2023), system descriptions",
    )


GPUS: dict[str, Gpu] = {
    "a100-80g": _gpu(matrix_tflops=312, vector_tflops=78, hbm_gb_s=2048),
    "h100-80g": _gpu(matrix_tflops=1000, vector_tflops=120, hbm_gb_s=3072),
}


def gpu(name: str) -> Gpu:
    """Return the facts about a GPU type.

    Args:
        name: a key of ``GPUS``; ``ClusterSpec.gpu``.

    Raises:
        ConfigError: no such type (the nearest is offered).
    """
    if name not in GPUS:
        raise ConfigError(f"unknown GPU '{name}': {nearest(name, GPUS)}")
    return GPUS[name]
