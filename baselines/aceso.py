"""Aceso: relieve the bottleneck of a configuration, again and again.

    T = max_s ( t_s * (m - 1) + sum t )

t_s is forward and backward of one micro-batch on stage s, recomputation included. The gradients'
all-reduce and the optimizer take no time, as in the original, which favours data parallelism.

For every number of stages, from an even configuration: find the bottleneck stage (by memory while
one does not fit, else by time) and try one move on it, the moves that relieve its scarcest resource
first: a layer out towards the idlest stage, dp up (tp down), dp down (tp up), micro-batch up or
down. After each move every stage recomputes the fewest layers with which it fits. The first
configuration that is better is taken; if none is, up to 7 moves are chained with back-tracking,
never to a configuration that was seen; then the next bottleneck is tried. Aceso's own grid of
Megatron-LM plans (one degree for all stages, even layers) is evaluated by the same formula.

Left out: degrees that differ inside a stage, and GPUs that move between stages: stages have equally
many GPUs, so dp up is tp down. Aceso stops after a time; here after a number of evaluations, so
that the answer depends on nothing but the question.

Source: Liu et al., EuroSys 2024
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cona.cost.model_costs import checked_sizes
from cona.errors import ConfigError
from cona.planners import Answer, OfflinePlanner, Query, choose
from cona.planners.bottlenecks import Config, Configs, Load, Score
from cona.planners.stage_prices import StagePricer
from cona.strategy import divisors

RELIEF = {
    "compute": ("layer out", "tp up", "dp up", "mbs up"),
    "exchange": ("dp up", "layer out", "mbs up"),
    "memory": ("layer out", "tp up", "mbs down"),
}
"""Moves that take load off each resource; larger micro-batches make better use of a GPU."""

MOST_HOPS = 100
"""Longer chains find nothing more; guards the recursion."""


@dataclass(kw_only=True)
class Aceso(OfflinePlanner):
    """Iterative relief of the bottleneck stage, for every number of stages."""

    name: ClassVar[str] = "aceso"
    summary: ClassVar[str] = "moves that relieve the bottleneck stage; no all-reduce in its time"
    source: ClassVar[str] = "Aceso (Liu et al., EuroSys 2024)"

    max_hops: int = 7
    """Moves that are chained before giving up, as in the paper."""
    max_evaluations: int = 400
    """ASSUMED: configurations tried for each number of stages; the paper gives 200 s."""
    grid: bool = True
    """Whether Aceso's grid of Megatron-LM plans is evaluated too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_sizes(max_hops=self.max_hops, max_evaluations=self.max_evaluations)
        if self.max_hops > MOST_HOPS:
            raise ConfigError(f"max_hops = {self.max_hops}: must be at most {MOST_HOPS}")

    def plan(self, query: Query) -> Answer:
        """Return the fastest plan that fits; raises ConfigError naming the closest."""
        pricer = StagePricer(query)
        searches = [self._searched(Configs(pricer, pp)) for pp in stage_counts(pricer)]
        plans = [s.configs.plan(config) for s in searches for config in s.seen]
        return choose(self.name, query, plans)

    def _searched(self, configs: Configs) -> Search:
        search = Search(configs=configs, max_hops=self.max_hops, left=self.max_evaluations)
        search.run()
        for config in grid(configs) if self.grid else ():
            search.seen.setdefault(config)
        return search


def stage_counts(pricer: StagePricer) -> list[int]:
    """Return the numbers of stages: GPUs divide evenly, and no stage is without a layer."""
    return [pp for pp in divisors(pricer.num_gpus) if pp <= pricer.num_layers]


def grid(configs: Configs) -> Iterator[Config]:
    """Return every configuration with one degree and equal layers."""
    share, rest = divmod(configs.pricer.num_layers, configs.num_stages)
    for tp in configs.tps if not rest else ():
        for samples in divisors(configs.pricer.query.gbs):
            config = Config(
                layers=(share,) * configs.num_stages,
                tps=(tp,) * configs.num_stages,
                samples=samples,
            )
            if configs.is_valid(config):
                yield config


@dataclass(kw_only=True)
class Search:
    """The search for one number of stages."""

    configs: Configs
    """Prices."""
    max_hops: int
    """Moves in a chain."""
    left: int
    """Configurations that may still be tried."""
    seen: dict[Config, None] = field(default_factory=dict)
    """Every configuration that was tried, in order."""

    def run(self) -> None:
        """Improve the even configuration until nothing helps."""
        current = self.first()
        while current is not None:
            self.seen.setdefault(current)
            current = self._better(current)

    def first(self) -> Config | None:
        """Return the even configuration with the least tp and micro-batch; None: there is none."""
        share, rest = divmod(self.configs.pricer.num_layers, self.configs.num_stages)
        layers = tuple(share + (i < rest) for i in range(self.configs.num_stages))
        candidates = (
            Config(layers=layers, tps=(tp,) * self.configs.num_stages, samples=samples)
            for tp in self.configs.tps
            for samples in divisors(self.configs.pricer.query.gbs)
        )
        return next(filter(self.configs.is_valid, candidates), None)

    def _better(self, config: Config) -> Config | None:
        loads = self.configs.loads(config)
        target = self.configs.score(config, loads)
        for stage in self.configs.bottlenecks(loads):
            if found := self._hop(config, loads, stage, target, self.max_hops):
                return found
        return None

    def _hop(
        self, config: Config, loads: Sequence[Load], stage: int, target: Score, hops: int
    ) -> Config | None:
        """The first configuration within so many moves that is better than the target."""
        tried: list[tuple[Score, int, Config, list[Load]]] = []
        for move in moves(self.configs, config, stage, loads):
            if move in self.seen or self.left <= 0:
                continue
            self.seen[move], self.left = None, self.left - 1
            after = self.configs.loads(move)
            score = self.configs.score(move, after)
            if score < target:
                return move
            tried.append((score, len(tried), move, after))
        for _, _, move, after in sorted(tried) if hops > 1 else ():
            worst = self.configs.bottlenecks(after)[0]
            if found := self._hop(move, after, worst, target, hops - 1):
                return found
        return None


def moves(configs: Configs, config: Config, stage: int, loads: Sequence[Load]) -> list[Config]:
    """Return the configurations one move away, those that relieve the scarcest resource first.

    A resource is scarcer, the larger the stage's share of what all stages take of it.

    Args:
        configs: prices; says what exists.
        config: where the move starts.
        stage: the bottleneck.
        loads: what its stages take.
    """
    taken = {
        "compute": [load.compute_s for load in loads],
        "exchange": [load.exchange_s for load in loads],
        "memory": [load.memory_bytes for load in loads],
    }
    order = sorted(taken, key=lambda name: -taken[name][stage] / (sum(taken[name]) or 1.0))
    names = dict.fromkeys(move for resource in order for move in RELIEF[resource])
    found = [_moved(name, configs, config, stage, loads) for name in names]
    return [move for move in found if move and configs.is_valid(move)]


def _moved(
    name: str, configs: Configs, config: Config, stage: int, loads: Sequence[Load]
) -> Config | None:
    """The configuration after a move; None: there is none."""
    if name == "layer out":
        idlest = min(range(len(loads)), key=lambda other: loads[other].seconds)
        layers = [n - (i == stage) + (i == idlest) for i, n in enumerate(config.layers)]
        return replace(config, layers=tuple(layers)) if idlest != stage else None
    if name.startswith("mbs"):
        samples = _next(divisors(configs.pricer.query.gbs), config.samples, name == "mbs up")
        return replace(config, samples=samples) if samples else None
    tp = _next(configs.tps, config.tps[stage], name == "tp up")
    tps = (*config.tps[:stage], tp or 0, *config.tps[stage + 1 :])
    return replace(config, tps=tps) if tp else None


def _next(values: Sequence[int], value: int, is_up: bool) -> int | None:
    """The value after or before another; None: there is none."""
    index = values.index(value) + (1 if is_up else -1)
    return values[index] if 0 <= index < len(values) else None
