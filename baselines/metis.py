"""Metis on one kind of GPU: device groups, layers in proportion to speed, dp before tp.

Um et al., "Metis: Fast automatic distributed training on heterogeneous GPUs", USENIX ATC 2024. With
m micro-batches and t_i the seconds of stage i for one of them,

    T = (m-1) max t_i + sum t_i + m fb_sync + optimizer + DP + PP + m batch_generator,

    fb_sync    profiled passes of the whole model less the sum of its layers, on the last stage
    optimizer  2 * profiled / (pp * tp)
    DP         max_i 2 (dp_i - 1) / (dp_i B) * parameter bytes_i / tp_i
    PP         sum over boundaries of (b s h, or b s V/tp before the last layer) / B

For every number of stages, division of the GPUs into groups and m, stages start at tp = 1 with
dp = their GPUs; layers (embedding and head count as two) are cut in proportion to the stages'
speed; 5.0 * profiled memory must be within the group's total. If not, layers are cut anew, at most
three times, with the loads of full stages capped; only then the tightest stage moves to dp/2, tp*2.

Left out: GPUs of several kinds and the order of nodes. ASSUMED: the cap is the load of the pieces
that fit, a cut is the nearest to its share, loads are the first stage's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from cona.planners import Answer, OfflinePlanner, Plan, Query, StagePlan, choose
from cona.planners.chain import (
    LayerChain,
    bytes_per_s,
    capped_shares,
    first_gpus,
    proportional_cuts,
    slowest_link,
)
from cona.planners.groupings import device_groups
from cona.strategy import divisors

Degrees = tuple[tuple[int, int], ...]
"""(dp, tp) of every stage."""

NEGATIVE_SYNC = "forward_backward_ms is less than the sum of the layers, so fb_sync is negative"
"""Said of a plan whose cost is lowered by what the profile lacks."""


@dataclass(kw_only=True)
class Metis(OfflinePlanner):
    """Balanced stages over groups of GPUs; where the original errs, the default is its error."""

    name: ClassVar[str] = "metis"
    summary: ClassVar[str] = "groups of GPUs, layers by speed, tensor parallel only if memory asks"
    source: ClassVar[str] = "Metis (Um et al., USENIX ATC 2024)"

    memory_factor: float = 5.0
    """Bytes that training needs per profiled byte."""
    memory_per_gpu: bool = False
    """Compare with one GPU's memory; the original compares one GPU's need with the group's sum."""
    boundary_element_bytes: int = 1
    """Bytes of an element sent between stages; the original divides elements by bytes/s."""
    optimizer_factor: float = 2.0
    """What the profiled optimizer time is multiplied by."""
    max_repartitions: int = 3
    """How often layers are cut anew before degrees change."""
    halve_idle_dp: bool = True
    """ASSUMED: a stage whose dp does not divide a micro-batch halves it; else it is dropped."""
    group_scale: float = 1.0
    """ASSUMED: a group has at least this share of num_gpus // num_stages."""
    max_orders: int = 64
    """ASSUMED: how many orders of the same groups are tried."""

    def plan(self, query: Query) -> Answer:
        """Return the cheapest plan; raises ConfigError naming the closest where nothing fits."""
        return choose(self.name, query, MetisSearch(query, self).plans())


class MetisSearch:
    """Metis' search for one query."""

    def __init__(self, query: Query, rules: Metis) -> None:
        self.query, self.rules, self.chain = query, rules, LayerChain(query)

    def plans(self) -> Iterator[Plan]:
        """Yield a plan for every division of the GPUs and number of micro-batches that has one."""
        for num_stages in range(1, min(self.query.num_gpus, len(self.chain)) + 1):
            for groups in self._groups(num_stages):
                for m in divisors(self.query.gbs):
                    if plan := self.plan(groups, m):
                        yield plan

    def _groups(self, num_stages: int) -> Iterator[tuple[int, ...]]:
        return device_groups(
            self.query.num_gpus,
            num_stages,
            least_share=self.rules.group_scale,
            max_orders=self.rules.max_orders,
        )

    def plan(self, groups: Sequence[int], m: int) -> Plan | None:
        """Return the plan that fits first, the last tried if none does, or None: none divides.

        Args:
            groups: GPUs of each stage.
            m: micro-batches.
        """
        samples, last = self.query.gbs // m, None
        degrees: Degrees | None = tuple((size, 1) for size in groups)
        while degrees:
            idle = [i for i, (dp, _) in enumerate(degrees) if samples % dp]
            if idle:
                degrees = self._halved(degrees, idle[0]) if self.rules.halve_idle_dp else None
                continue
            if not all(self.query.allows(tp, samples // dp) for dp, tp in degrees):
                return last
            last = self._partitioned(degrees, m)
            if self.query.fits(last):
                return last
            degrees = self._tightest_halved(degrees, last)
        return last

    def _partitioned(self, degrees: Degrees, m: int) -> Plan:
        """Cut layers by speed, and anew while stages are too large, with their loads capped."""
        samples = self.query.gbs // m
        speeds = [1 / self.chain.sums(tp, samples // dp)[-1] for dp, tp in degrees]
        loads = self.chain.seconds(degrees[0][1], samples // degrees[0][0])
        caps: dict[int, float] = {}
        for _ in range(1 + self.rules.max_repartitions):
            cuts = proportional_cuts(loads, capped_shares(speeds, caps, sum(loads)))
            plan = self.price(degrees, cuts, m)
            if self.query.fits(plan):
                break
            caps |= self._caps(degrees, cuts, m, loads)
        return plan

    def _caps(
        self, degrees: Degrees, cuts: Sequence[int], m: int, loads: Sequence[float]
    ) -> dict[int, float]:
        """The load that fits on every stage that is too large, at least a piece's."""
        caps = {}
        for stage, ((dp, tp), (a, b)) in enumerate(zip(degrees, pairwise(cuts), strict=True)):
            sizes = self.chain.memory_bytes(tp, self.query.gbs // m // dp)
            kept = list(zip(loads[a:b], sizes[a:b], strict=True))
            if stage == len(degrees) - 1:
                kept.reverse()  # it gives its first pieces away, others their last
            while (
                len(kept) > 1
                and self._needed(dp, tp, (size for _, size in kept)) > self.query.gpu_memory_bytes
            ):
                kept.pop()
            if len(kept) < b - a:
                caps[stage] = sum(load for load, _ in kept)
        return caps

    def _needed(self, dp: int, tp: int, sizes: Iterable[float]) -> float:
        """Bytes that are compared with a GPU's memory, for pieces of so many profiled bytes."""
        num_gpus = 1 if self.rules.memory_per_gpu else dp * tp
        return self.rules.memory_factor * sum(sizes) / num_gpus

    def price(self, degrees: Degrees, cuts: Sequence[int], m: int) -> Plan:
        """Return the plan of stages with its cost.

        Args:
            degrees: (dp, tp) of every stage.
            cuts: pieces cuts[i] to cuts[i+1] are stage i's.
            m: micro-batches.
        """
        samples = self.query.gbs // m
        stages = tuple(
            self._stage(dp, tp, samples // dp, a, b, layers)
            for (dp, tp), (a, b), layers in zip(
                degrees, pairwise(cuts), self.chain.stages(cuts), strict=True
            )
        )
        times = [stage.seconds or 0.0 for stage in stages]
        pipeline_s = (m - 1) * max(times) + sum(times)
        sync_s = self._sync_s(*degrees[-1], m)
        per_microbatch_s = sync_s + self.query.costs.batch_generator_time()
        once_s = self._optimizer_s(degrees) + self._reduce_s(degrees, cuts)
        once_s += self._messages_s(degrees, cuts, m)
        believed_s = pipeline_s + m * per_microbatch_s + once_s
        mbs = samples // degrees[0][0]
        is_negative = sync_s < -1e-9 * sum(times)  # beyond rounding
        return Plan(
            stages=stages,
            mbs=mbs,
            gbs=self.query.gbs,
            believed_s=believed_s,
            notes=NEGATIVE_SYNC if is_negative else "",
        )

    def _stage(
        self, dp: int, tp: int, mbs: int, a: int, b: int, layers: tuple[int, int]
    ) -> StagePlan:
        sums = self.chain.sums(tp, mbs)
        return StagePlan(
            first_layer=layers[0],
            num_layers=layers[1],
            dp=dp,
            tp=tp,
            seconds=sums[b] - sums[a],
            memory_bytes=self._needed(dp, tp, self.chain.memory_bytes(tp, mbs)[a:b]),
        )

    def _sync_s(self, dp: int, tp: int, m: int) -> float:
        """fb_sync: what a micro-batch took in the profile beyond its layers."""
        mbs = self.query.gbs // m // dp
        return self.query.costs.forward_backward_time(tp, mbs) - self.chain.sums(tp, mbs)[-1]

    def _optimizer_s(self, degrees: Degrees) -> float:
        shards = len(degrees) * min(tp for _, tp in degrees)
        return self.rules.optimizer_factor * self._whole_optimizer_s / shards

    @cached_property
    def _whole_optimizer_s(self) -> float:
        return self.query.costs.optimizer(1, 1)

    def _reduce_s(self, degrees: Degrees, cuts: Sequence[int]) -> float:
        """DP: the slowest stage's all-reduce of gradients."""
        stages = zip(degrees, pairwise(cuts), pairwise(first_gpus(degrees)), strict=True)
        return max(
            2 * (dp - 1) / (dp * self._rate(*gpus)) * sum(self.chain.params_bytes[a:b]) / tp
            for (dp, tp), (a, b), gpus in stages
        )

    def _messages_s(self, degrees: Degrees, cuts: Sequence[int], m: int) -> float:
        """PP: the activations of one micro-batch over every boundary."""
        model, first, total = self.query.model, first_gpus(degrees), 0.0
        for i, (dp, tp) in enumerate(degrees[:-1]):
            is_before_last = cuts[i + 1] == len(self.chain) - 1
            width = model.vocab_size / tp if is_before_last else model.hidden_size
            elements = self.query.gbs // m // dp * model.seq_length * width
            rate = self._rate(first[i], first[i + 2])
            total += elements * self.rules.boundary_element_bytes / rate
        return total

    def _rate(self, first_gpu: int, end_gpu: int) -> float:
        return bytes_per_s(slowest_link(self.query, first_gpu, end_gpu))

    def _halved(self, degrees: Degrees, stage: int) -> Degrees | None:
        """Return the degrees with a stage at dp/2, tp*2; None: it cannot."""
        dp, tp = degrees[stage]
        if dp % 2 or not self.query.allows_tp(2 * tp):
            return None
        return (*degrees[:stage], (dp // 2, 2 * tp), *degrees[stage + 1 :])

    def _tightest_halved(self, degrees: Degrees, plan: Plan) -> Degrees | None:
        """Halve dp of the tightest of the stages that are too large, if one can."""
        memory = [stage.memory_bytes or 0.0 for stage in plan.stages]
        full = [i for i, size in enumerate(memory) if size > self.query.gpu_memory_bytes]
        for stage in sorted(full, key=lambda i: -memory[i]):
            if halved := self._halved(degrees, stage):
                return halved
        return None
