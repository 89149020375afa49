"""Galvatron's cost of one layer under its own strategy: (tp, dp, what is sharded, recompute).

    forward    = a * local_batch / tp + c        a, c fitted to profiled forward passes at tp = 1
    backward   = 2 * forward, and one forward more where the layer is recomputed
    tp         = 4 all-reduces of the activations per micro-batch, 6 where it is recomputed
    dp         = 2(dp-1)/dp * parameter bytes / tp / bandwidth, once per iteration
    overlap    = max(x, y) + 0.13 * min(x, y)    both slow down by 1.13 while they overlap

Source: Miao et al., PVLDB 16(3), 2022 (VLDB 2023), sections 3.1 and 4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cona.cost.gpus import Floats
from cona.cost.measured_costs import MeasuredCosts
from cona.errors import ConfigError
from cona.planners.stage_prices import StagePricer

OVERLAP_SLOWDOWN = 1.13
"""Galvatron's measured slow-down of computing and communicating at the same time."""


@dataclass(frozen=True, kw_only=True, order=True)
class LayerStrategy:
    """How the GPUs of a stage share one layer."""

    tp: int
    """Tensor-parallel degree."""
    dp: int
    """Data-parallel degree."""
    zero_stage: int
    """What the replicas shard: the techniques' own (ddp), 2 (zero2) or 3 (zero3)."""
    recompute: bool
    """Whether the layer is computed again in the backward pass."""

    def __str__(self) -> str:
        again = "-recompute" if self.recompute else ""
        return f"dp{self.dp}-tp{self.tp}-zero{self.zero_stage}{again}"


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Forward seconds of a layer as a line over the local batch."""

    per_sample_s: float
    """a: seconds per sample."""
    fixed_s: float
    """c: seconds whatever the batch."""

    def __call__(self, local_batch: float) -> float:
        """Return the forward seconds of a local batch, samples."""
        return self.per_sample_s * local_batch + self.fixed_s

    @classmethod
    def fit(cls, batches: Sequence[int], seconds: Sequence[float]) -> Linear:
        """Return the least-squares line; through the origin where one size was profiled."""
        if len(batches) == 1:
            return cls(per_sample_s=seconds[0] / batches[0], fixed_s=0.0)
        slope, constant = np.polyfit(batches, seconds, 1)
        return cls(per_sample_s=float(slope), fixed_s=float(constant))


@dataclass(frozen=True, kw_only=True)
class LayerTable:
    """Times of every layer under every strategy at one micro-batch, [layers, strategies]."""

    microbatch_s: Floats
    """Forward and backward seconds of one micro-batch."""
    once_s: Floats
    """Seconds that the exchange of gradients adds once per iteration."""


class LayerCosts:
    """Galvatron's cost model of one query; the first and the last layer also pay for the ends.

    Args:
        pricer: prices of layers and memory.

    Raises:
        ConfigError: the costs know no layer at tp = 1.
    """

    def __init__(self, pricer: StagePricer) -> None:
        self.pricer, query = pricer, pricer.query
        powers = [2**i for i in range(query.mbs_max.bit_length())]
        sizes = query.costs.mbss if isinstance(query.costs, MeasuredCosts) else powers
        self._known = {size: pricer.times(1, size) for size in sizes if query.allows(1, size)}
        if not self._known:
            raise ConfigError(
                f"galvatron: its times scale from tp 1, which was not measured at mbs <= "
                f"{query.mbs_max}; measure tp 1"
            )

    @cached_property
    def forward(self) -> tuple[Linear, ...]:
        """Every layer's forward pass; embedding and head are parts of the first and the last."""
        batches, times = list(self._known), list(self._known.values())
        rows = np.array([t.forward for t in times])
        rows[:, 0] += [t.embedding / 3 for t in times]  # like a layer: backward = 2 * forward
        rows[:, -1] += [t.head / 3 for t in times]
        return tuple(Linear.fit(batches, column.tolist()) for column in rows.T)

    @cached_property
    def params_bytes(self) -> Floats:
        """16-bit weights of every layer and the ends that it stands for, shape [L]."""
        return np.diagonal(self.pricer.params_bytes, offset=1)

    def table(self, strategies: Sequence[LayerStrategy], samples: int) -> LayerTable:
        """Return the times of all layers for a micro-batch of ``samples`` over all replicas."""
        columns = [self._column(strategy, samples / strategy.dp) for strategy in strategies]
        return LayerTable(
            microbatch_s=np.stack([column[0] for column in columns], axis=1),
            once_s=np.stack([column[1] for column in columns], axis=1),
        )

    def _column(self, strategy: LayerStrategy, local_batch: float) -> tuple[Floats, Floats]:
        """Seconds per micro-batch and once per iteration of every layer, shape [L] each."""
        forward = np.array([line(local_batch / strategy.tp) for line in self.forward])
        weights = self.params_bytes / strategy.tp
        sync_s = self.pricer.sync_s(weights, strategy.dp, strategy.tp)
        # The gather before the backward pass hides behind the layer before it (ASSUMED).
        gather_s = sync_s / 2 if strategy.zero_stage == 3 else np.zeros_like(sync_s)
        passes = 4 if strategy.recompute else 3
        microbatch_s = passes * forward + self._tp_s(strategy, local_batch) + gather_s
        return microbatch_s, overlapped_s(2 * forward, sync_s) - 2 * forward

    def _tp_s(self, strategy: LayerStrategy, local_batch: float) -> float:
        num_bytes = local_batch * self.pricer.boundary_bytes(1)
        count = 6 if strategy.recompute else 4
        return count * self.pricer.query.costs.allreduce(num_bytes, strategy.tp)

    def relayout_s(self, tps: Sequence[int], samples: int, num_gpus: int) -> Floats:
        """Return the seconds between layers whose tp differs, shape [tps, tps].

        The larger tp's ranks need more samples each: once per micro-batch and direction of change
        they gather what they lack, the share 1 - min/max of their batch.

        Args:
            tps: tensor-parallel degrees.
            samples: of a micro-batch over the whole stage.
            num_gpus: GPUs of the stage.
        """
        degrees = np.array(tps, float)
        large = np.maximum(degrees[:, None], degrees[None, :])
        small = np.minimum(degrees[:, None], degrees[None, :])
        num_bytes = samples * large / num_gpus * self.pricer.boundary_bytes(1)
        return (1 - small / large) * num_bytes / self.pricer.bytes_per_s(max(tps))

    def bytes(self, strategy: LayerStrategy, samples: int, in_flight: int) -> tuple[float, ...]:
        """Return bytes of a layer, of the first's and the last's ends, of one stage's both, base.

        Args:
            strategy: of the layer.
            samples: of a micro-batch over all replicas.
            in_flight: micro-batches whose activations the stage keeps.
        """
        memory = self.pricer.memory(
            strategy.dp,
            strategy.tp,
            samples // strategy.dp,
            full=strategy.recompute,
            zero_stage=strategy.zero_stage,
        )
        return memory.layer(in_flight), memory.first, memory.last, memory.alone, memory.base


def overlapped_s(one_s: Floats, other_s: Floats) -> Floats:
    """Return the seconds of two things that run at once and slow each other down."""
    shorter, longer = np.minimum(one_s, other_s), np.maximum(one_s, other_s)
    return longer + (OVERLAP_SLOWDOWN - 1) * shorter
