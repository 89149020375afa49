"""What a GPU can do: data-sheet facts, and Calculon's fraction of them that an operation reaches.

Source: the data sheets named below; cost-model.md, Calculon's model. The only place with facts
about GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cona.errors import ConfigError, nearest

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """What the vendor states about one GPU; matrix rates are dense, without sparsity."""

    bf16_tflops: float
    """Tensor cores, fp16 or bf16, 1e12 FLOP/s."""
    fp8_tflops: float | None
    """Tensor cores, fp8, 1e12 FLOP/s; None: no fp8."""
    vector_tflops: float
    """Other cores, fp16, 1e12 FLOP/s."""
    hbm_gb_s: float
    """Bandwidth of the GPU's memory, 1e9 bytes/s."""
    memory_gb: float
    """Size of the GPU's memory, 1e9 bytes."""
    nvlink_gb_s: float
    """NVLink bandwidth in one direction, all links of the GPU together, 1e9 bytes/s."""
    source: str
    """Which data sheet."""


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
    sheet: DataSheet
    """What the vendor states."""
    source: str
    """Where the three units' figures come from."""

    def gemm_s(self, flops: Floats, num_bytes: Floats) -> Floats:
        """Return the seconds of matrix products of ``flops`` that move ``num_bytes``."""
        return self.matrix.time_s(flops) + self.memory.time_s(num_bytes)

    def vector_s(self, flops: Floats, num_bytes: Floats) -> Floats:
        """Return the seconds of element-wise operations of ``flops`` that move ``num_bytes``."""
        return self.vector.time_s(flops) + self.memory.time_s(num_bytes)


_A100 = {"bf16_tflops": 312.0, "vector_tflops": 78.0, "nvlink_gb_s": 300.0}

_H100 = {"bf16_tflops": 989.4, "fp8_tflops": 1978.9, "vector_tflops": 133.8, "nvlink_gb_s": 450.0}

_V100 = {"bf16_tflops": 125.0, "vector_tflops": 31.4, "hbm_gb_s": 900.0, "nvlink_gb_s": 150.0}
_V100_SOURCE = (
    "NVIDIA V100 data sheet, SXM, NVLink 2; its tensor cores take fp16 only (no bf16); the vector "
    "rate of fp16 is twice the 15.7 TFLOP/s of fp32"
)

SHEETS: dict[str, DataSheet] = {
    "a100-80g": DataSheet(
        **_A100,
        fp8_tflops=None,
        hbm_gb_s=2039,
        memory_gb=80,
        source="NVIDIA A100 Tensor Core GPU data sheet, SXM4 80 GB (PCIe: 1,935 GB/s, no switch)",
    ),
    "a100-40g": DataSheet(
        **_A100,
        fp8_tflops=None,
        hbm_gb_s=1555,
        memory_gb=40,
        source="NVIDIA A100 Tensor Core GPU data sheet, SXM4 40 GB",
    ),
    "h100-80g": DataSheet(
        **_H100,
        hbm_gb_s=3350,
        memory_gb=80,
        source="NVIDIA H100 Tensor Core GPU data sheet and architecture paper, SXM5 80 GB",
    ),
    "h200": DataSheet(
        **_H100,
        hbm_gb_s=4800,
        memory_gb=141,
        source="NVIDIA H200 Tensor Core GPU data sheet, SXM5 141 GB",
    ),
    "b200": DataSheet(
        bf16_tflops=2250,
        fp8_tflops=4500,
        vector_tflops=150,
        hbm_gb_s=8000,
        memory_gb=180,
        nvlink_gb_s=900,
        source="NVIDIA DGX B200 and HGX B200 data sheets, an eighth of the system; ASSUMED: the "
        "vector rate of fp16 is twice the 75 TFLOP/s of fp32",
    ),
    "v100-32g": DataSheet(**_V100, fp8_tflops=None, memory_gb=32, source=_V100_SOURCE),
    "v100-16g": DataSheet(**_V100, fp8_tflops=None, memory_gb=16, source=_V100_SOURCE),
    "cpu": DataSheet(
        bf16_tflops=0.1,
        fp8_tflops=None,
        vector_tflops=0.02,
        hbm_gb_s=10,
        memory_gb=4,
        nvlink_gb_s=1,
        source="no data sheet; ASSUMED: orders of magnitude of one core in float32, its share of "
        "a laptop's 16 GB, gloo over loopback; a first belief, which measured iterations correct",
    ),
}
"""Data-sheet facts by GPU type."""

_CALCULON_SOURCE = "Calculon (Isaev et al. 2023), system descriptions"
_ASSUMED_SOURCE = "peaks of the data sheet; ASSUMED: Calculon's efficiency steps, those of A100"


def _gpu(
    sheet: DataSheet,
    source: str = _ASSUMED_SOURCE,
    *,
    matrix_tflops: float | None = None,
    vector_tflops: float | None = None,
    hbm_gb_s: float | None = None,
) -> Gpu:
    """Build a GPU with the efficiency steps that Calculon gives to both A100 and H100.

    A peak that Calculon states differently from the data sheet is given; else it is the sheet's.
    """
    return Gpu(
        matrix=Unit(
            peak_per_s=(matrix_tflops or sheet.bf16_tflops) * 1e12,
            thresholds=(1e9, 16e9, 128e9),
            efficiencies=(0.1, 0.6, 0.9, 0.95),
        ),
        vector=Unit(
            peak_per_s=(vector_tflops or sheet.vector_tflops) * 1e12,
            thresholds=(1e9, 16e9),
            efficiencies=(0.1, 0.5, 0.95),
        ),
        memory=Unit(
            peak_per_s=(hbm_gb_s or sheet.hbm_gb_s) * 1e9,
            thresholds=(1e6, 10e6, 100e6),
            efficiencies=(0.3, 0.6, 0.75, 0.9),
        ),
        sheet=sheet,
        source=source,
    )


GPUS: dict[str, Gpu] = {name: _gpu(sheet) for name, sheet in SHEETS.items()} | {
    "a100-80g": _gpu(SHEETS["a100-80g"], _CALCULON_SOURCE, hbm_gb_s=2048),
    "h100-80g": _gpu(
        SHEETS["h100-80g"],
        _CALCULON_SOURCE,
        matrix_tflops=1000,
        vector_tflops=120,
        hbm_gb_s=3072,
    ),
}
"""Every GPU type that the cost models know."""


def gpu(name: str) -> Gpu:
    """Return the facts about a GPU type.

    Args:
        name: a key of ``GPUS``; ``ClusterSpec.gpu``.

    Raises:
        ConfigError: no such type (the nearest is offered).
    """
    if name not in GPUS:
        sizes = [key for key in GPUS if key.startswith(name)]  # only its memory is missing
        raise ConfigError(f"unknown GPU '{name}': {nearest(name, sizes or GPUS)}")
    return GPUS[name]
