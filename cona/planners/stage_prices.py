"""What planners of unequal stages share: prices and memory of any contiguous run of layers.

A stage is layers [first, last) of a chain of L; matrices over stages have shape [L+1, L+1] and are
indexed [first, last]. The first stage also holds the embedding, the last the head.

Source: baselines.md, Offline planners.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cona.cost.gpus import Floats
from cona.planners.chain import bytes_per_s
from cona.planners.layer_times import LayerTimes, cheapest_sums, ranges, stage_lengths
from cona.planners.plans import StagePlan
from cona.planners.query import Query
from cona.planners.stage_memory import StageMemory, stage_memory
from cona.strategy import Recompute, divisors

VALUE_BYTES = 2
"""Bytes of a 16-bit weight or activation."""


@dataclass(frozen=True, kw_only=True)
class StagePrices:
    """Every possible stage under one (dp, tp, mbs); each field has shape [L+1, L+1]."""

    seconds: Floats
    """Forward and backward of one micro-batch, recomputation included; inf: does not fit."""
    memory_bytes: Floats
    """Bytes per GPU."""
    num_recomputed: Floats
    """Layers that are computed again in the backward pass."""


class StagePricer:
    """Prices of stages for one query; each price is asked for once.

    Args:
        query: what is planned; its techniques say what every plan uses. A planner may still
            recompute layers that the techniques would keep.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.num_layers = query.model.num_layers
        self.num_gpus = query.num_gpus
        self._times: dict[tuple[int, int], LayerTimes] = {}
        self._memory: dict[tuple[int, int, int, bool, int], StageMemory] = {}
        self._cheapest: dict[tuple[int, int], Floats] = {}

    @cached_property
    def tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees inside a node that the model allows, ascending."""
        node = min(self.query.gpus_per_node, self.num_gpus)
        return tuple(tp for tp in divisors(node) if self.query.allows_tp(tp))

    def times(self, tp: int, mbs: int) -> LayerTimes:
        """Return the seconds of layers and ends; raises ConfigError: a profile lacks the sizes."""
        if (tp, mbs) not in self._times:
            self._times[tp, mbs] = LayerTimes.of(self.query.costs, self.num_layers, tp, mbs)
        return self._times[tp, mbs]

    @cached_property
    def params_bytes(self) -> Floats:
        """16-bit weights of every stage over all tp, in bytes, shape [L+1, L+1]; 0: no stage."""
        costs, model = self.query.costs, self.query.model
        sizes = ranges(np.array([costs.params_bytes(i) for i in range(self.num_layers)], float))
        sizes[0, :] += costs.params_bytes("embedding")
        sizes[:, -1] += costs.params_bytes("head")
        if model.tied_embeddings:  # one stage holds one table, though both ends count it
            sizes[0, -1] -= VALUE_BYTES * model.padded_vocab_size * model.hidden_size
        return np.where(stage_lengths(self.num_layers) > 0, sizes, 0.0)

    def boundary_bytes(self, mbs: int) -> int:
        """Return the bytes of the activations that pass from a layer to the next."""
        return mbs * self.query.model.seq_length * self.query.model.hidden_size * VALUE_BYTES

    def sync_s(self, num_bytes: Floats, dp: int, tp: int) -> Floats:
        """Return the seconds of a ring all-reduce, 2(dp-1)/(dp*bandwidth) per byte.

        A stage's dp*tp GPUs are consecutive: a ring that leaves the node is as slow as its link.
        """
        return 2 * (dp - 1) / dp * num_bytes / self.bytes_per_s(dp * tp)

    def bytes_per_s(self, num_gpus: int) -> float:
        """Return the rate of large messages on the slowest link of so many consecutive GPUs."""
        is_inside = num_gpus <= self.query.gpus_per_node
        return bytes_per_s(self.query.costs.link("intra_node" if is_inside else "inter_node"))

    def memory(
        self, dp: int, tp: int, mbs: int, *, full: bool = False, zero_stage: int | None = None
    ) -> StageMemory:
        """Return what a stage's memory consists of.

        Args:
            dp, tp: degrees inside the stage.
            mbs: samples of one replica's micro-batch.
            full: all layers are computed again, rather than what the techniques say.
            zero_stage: None: what the techniques say.
        """
        given = self.query.techniques
        zero = given.zero_stage if zero_stage is None else zero_stage
        key = dp, tp, mbs, full, zero
        if key not in self._memory:
            mode: Recompute = "full" if full else given.recompute
            techniques = replace(given, recompute=mode, zero_stage=zero)
            self._memory[key] = stage_memory(self.query, dp, tp, mbs, techniques)
        return self._memory[key]

    def prices(
        self, dp: int, tp: int, mbs: int, in_flight: int, *, may_recompute: bool, limited: bool
    ) -> StagePrices:
        """Return every stage's time and memory with as little recomputation as fits.

        All layers need equal memory here, so recomputing the cheapest first is exact.

        Args:
            dp, tp: degrees inside the stage.
            mbs: samples of one replica's micro-batch; must be known to the costs.
            in_flight: micro-batches whose activations the stage keeps.
            may_recompute: whether layers may be recomputed beyond what the techniques say.
            limited: whether a stage that does not fit takes infinitely long.
        """
        all_again = self.query.techniques.recompute == "full"
        keeps = self.memory(dp, tp, mbs).bytes(self.num_layers, in_flight)
        again = np.zeros_like(keeps)
        if may_recompute and not all_again:
            keeps, again = self._recomputed(keeps, dp, tp, mbs, in_flight)
        seconds = self._seconds(tp, mbs, again, all_again=all_again)
        if limited:
            seconds = np.where(keeps <= self.query.gpu_memory_bytes, seconds, np.inf)
        return StagePrices(seconds=seconds, memory_bytes=keeps, num_recomputed=again)

    def _recomputed(
        self, keeps: Floats, dp: int, tp: int, mbs: int, in_flight: int
    ) -> tuple[Floats, Floats]:
        """Bytes and number of layers after recomputing the fewest layers that fit, else all."""
        kept, full = self.memory(dp, tp, mbs), self.memory(dp, tp, mbs, full=True)
        working = full.base - kept.base  # one layer is whole while it is computed again
        saved = in_flight * (kept.per_microbatch - full.per_microbatch)
        if saved <= 0:
            return keeps, np.zeros_like(keeps)
        over = keeps - self.query.gpu_memory_bytes
        fewest = np.where(over > 0, np.ceil((over + working) / saved), 0.0)
        again = np.clip(fewest, 0, np.maximum(stage_lengths(self.num_layers), 0))
        again = np.where(again * saved > working, again, 0.0)
        return keeps + np.where(again > 0, working - again * saved, 0.0), again

    def _seconds(self, tp: int, mbs: int, again: Floats, *, all_again: bool) -> Floats:
        times = self.times(tp, mbs)
        seconds = ranges(times.both + times.forward if all_again else times.both)
        seconds[0, :] += times.embedding
        seconds[:, -1] += times.head
        return seconds + self._cheapest_s(tp, mbs, again) if again.any() else seconds

    def _cheapest_s(self, tp: int, mbs: int, again: Floats) -> Floats:
        """Forward seconds of the ``again`` cheapest layers of every stage."""
        if (tp, mbs) not in self._cheapest:
            self._cheapest[tp, mbs] = cheapest_sums(self.times(tp, mbs).forward)
        index = again.astype(int)[..., None]
        return np.take_along_axis(self._cheapest[tp, mbs], index, axis=2)[..., 0]

    def stage_plan(self, first: int, last: int, dp: int, tp: int, prices: StagePrices) -> StagePlan:
        """Return the plan of layers [first, last) at its price."""
        return StagePlan(
            first_layer=first,
            num_layers=last - first,
            dp=dp,
            tp=tp,
            seconds=float(prices.seconds[first, last]),
            memory_bytes=float(prices.memory_bytes[first, last]),
            recompute=self.modes(last - first, int(prices.num_recomputed[first, last])),
        )

    def modes(self, num_layers: int, num_recomputed: int) -> Recompute | tuple[Recompute, ...]:
        """Return what a stage computes again; where layers differ, the first ones stand for all."""
        kept = self.query.techniques.recompute
        if num_recomputed in (0, num_layers):
            return "full" if num_recomputed else kept
        return tuple("full" if i < num_recomputed else kept for i in range(num_layers))
