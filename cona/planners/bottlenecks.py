"""Aceso's configurations and what they cost, stage by stage.

Source: Liu et al., EuroSys 2024, sections 3 and 4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cona.planners.plans import Plan, StagePlan
from cona.planners.stage_prices import StagePricer, StagePrices


@dataclass(frozen=True, kw_only=True)
class Config:
    """A pipeline whose stages have equally many GPUs."""

    layers: tuple[int, ...]
    """Layers of every stage."""
    tps: tuple[int, ...]
    """Tensor-parallel degree of every stage; its other GPUs are replicas."""
    samples: int
    """Samples of a micro-batch over a stage's replicas."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one stage of a configuration takes."""

    compute_s: float
    """Seconds of a micro-batch that tensor parallelism divides."""
    exchange_s: float
    """The rest of a micro-batch's seconds."""
    memory_bytes: float
    """Bytes per GPU, after recomputing as few layers as fit."""

    @property
    def seconds(self) -> float:
        """Forward and backward seconds of a micro-batch, recomputation included."""
        return self.compute_s + self.exchange_s


Score = tuple[float, float]
"""Bytes that the fullest GPU lacks, then believed seconds: smaller is better."""


class Configs:
    """Prices configurations of one number of stages.

    Args:
        pricer: prices of layers and memory.
        num_stages: pp; divides the GPUs.
    """

    def __init__(self, pricer: StagePricer, num_stages: int) -> None:
        self.pricer, self.num_stages = pricer, num_stages
        self.num_gpus = pricer.num_gpus // num_stages
        self._prices: dict[tuple[int, int, int], StagePrices] = {}

    @cached_property
    def tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that divide a stage's GPUs, ascending."""
        return tuple(tp for tp in self.pricer.tps if self.num_gpus % tp == 0)

    def dp(self, config: Config, stage: int) -> int:
        """Return the replicas of a stage."""
        return self.num_gpus // config.tps[stage]

    def is_valid(self, config: Config) -> bool:
        """Return whether a configuration exists: layers everywhere, whole and priced batches."""
        if min(config.layers) < 1 or self.pricer.query.gbs % config.samples:
            return False
        return all(
            config.samples % (self.num_gpus // tp) == 0
            and self.pricer.query.allows(tp, config.samples // (self.num_gpus // tp))
            for tp in config.tps
        )

    def num_microbatches(self, config: Config) -> int:
        """Return m."""
        return self.pricer.query.gbs // config.samples

    def prices(self, config: Config, stage: int) -> StagePrices:
        """Return the prices of all stages with a stage's degrees and micro-batches in flight."""
        in_flight = min(self.num_stages - stage, self.num_microbatches(config))
        key = config.tps[stage], config.samples, in_flight
        if key not in self._prices:
            dp = self.dp(config, stage)
            self._prices[key] = self.pricer.prices(
                dp,
                config.tps[stage],
                config.samples // dp,
                in_flight,
                may_recompute=True,
                limited=False,
            )
        return self._prices[key]

    def loads(self, config: Config) -> list[Load]:
        """Return what every stage takes."""
        return [self._load(config, stage) for stage in range(self.num_stages)]

    def _load(self, config: Config, stage: int) -> Load:
        prices, tp, mbs = self.prices(config, stage), config.tps[stage], self._mbs(config, stage)
        first = sum(config.layers[:stage])
        last = first + config.layers[stage]
        seconds = float(prices.seconds[first, last])
        share = 1.0
        if self.pricer.query.allows(1, mbs):  # what tp does not divide is exchange
            alone, shared = self.pricer.times(1, mbs), self.pricer.times(tp, mbs)
            share = min(float(alone.both[first] / tp / shared.both[first]), 1.0)
        return Load(
            compute_s=share * seconds,
            exchange_s=(1 - share) * seconds,
            memory_bytes=float(prices.memory_bytes[first, last]),
        )

    def _mbs(self, config: Config, stage: int) -> int:
        return config.samples // self.dp(config, stage)

    def score(self, config: Config, loads: Sequence[Load]) -> Score:
        """Return how good a configuration is."""
        lacking = max(load.memory_bytes for load in loads) - self.pricer.query.gpu_memory_bytes
        return max(lacking, 0.0), self.time_s(config, loads)

    def time_s(self, config: Config, loads: Sequence[Load]) -> float:
        """Return T = max_s (t_s * (m-1) + sum t)."""
        times_s = [load.seconds for load in loads]
        return (self.num_microbatches(config) - 1) * max(times_s) + sum(times_s)

    def plan(self, config: Config) -> Plan:
        """Return a configuration as a plan."""
        stages: list[StagePlan] = []
        for stage, (count, tp) in enumerate(zip(config.layers, config.tps, strict=True)):
            first, prices = sum(config.layers[:stage]), self.prices(config, stage)
            dp = self.dp(config, stage)
            stages.append(self.pricer.stage_plan(first, first + count, dp, tp, prices))
        return Plan(
            stages=tuple(stages),
            mbs=self._mbs(config, 0),
            gbs=self.pricer.query.gbs,
            believed_s=self.time_s(config, self.loads(config)),
        )

    def bottlenecks(self, loads: Sequence[Load]) -> list[int]:
        """Return the stages in the order in which they hold the pipeline up, worst first.

        By memory while one does not fit, else by time.
        """
        over = max(load.memory_bytes for load in loads) > self.pricer.query.gpu_memory_bytes
        return sorted(
            range(self.num_stages),
            key=lambda stage: -(loads[stage].memory_bytes if over else loads[stage].seconds),
        )
