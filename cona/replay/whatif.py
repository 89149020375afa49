"""Would chaining pay on another cluster? Recorded runs, replayed and re-timed at other sizes.

A recorded run gives its gradient noise by progress, in noiseless steps. On each cluster a policy is
replayed on that noise, and every fixed strategy goes to the same progress; so does the recorded
sequence of batch sizes, whose losses are known. Nothing is trained: all seconds are modelled.
Source: issue 7, Build 4; method.md 3 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from cona import config
from cona.cost import SwitchCost, time_model
from cona.errors import ConfigError
from cona.replay.progress import ProgressNoise, chain_time_s, fixed_time_s, iterations_needed
from cona.replay.replay import fit_ladder
from cona.replay.trace import Recording
from cona.replay.walk import ReplayStage, Walk, seeing_policy
from cona.scene import Scene
from cona.search import best
from cona.specs import ClusterSpec, TierSpec
from cona.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recorded run, whose noise is replayed."""

    model: str
    """Name of the model that was trained; a proxy is priced as its full-size model."""
    seed: int
    policy: str
    """What trained it."""
    tier: TierSpec
    """Its settings; only its cluster and budget are replaced."""
    recording: Recording


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A strategy that never changes."""

    strategy: Strategy
    seconds: float
    """To the recorded progress."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One recorded run's noise on one cluster; all seconds are to the same progress."""

    seed: int
    rungs: tuple[int, ...]
    """Global batch sizes that the chain may take, samples."""
    chain: tuple[ReplayStage, ...]
    """Stages up to the progress."""
    chain_s: float | None
    """Seconds of the chain; None: not reached in the time of the smallest batch."""
    fixed: tuple[Fixed, ...]
    """The fastest strategy of every rung that can run, by the reference clock."""
    recorded_s: float | None
    """Seconds of the recorded batch sizes; None: the GPUs cannot run one of them."""
    end_steps: float
    """The progress, noiseless steps."""

    @property
    def best_fixed(self) -> Fixed:
        """The fixed strategy that needs least time, in hindsight."""
        return min(self.fixed, key=lambda one: one.seconds)

    @property
    def ratio(self) -> float | None:
        """Time of the best fixed strategy over the chain's; above 1 chaining pays."""
        return None if self.chain_s is None else self.best_fixed.seconds / self.chain_s

    @property
    def switches(self) -> tuple[ReplayStage, ...]:
        """The stages that were switched to."""
        return self.chain[1:]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One model on one cluster, over the seeds that were recorded."""

    cluster: ClusterSpec
    unusable: tuple[int, ...]
    """Of the recorded ladder: batch sizes that cannot use all GPUs, samples."""
    outcomes: tuple[Outcome, ...] = ()
    """By seed; empty if nothing can run."""
    why_none: str | None = None
    """Why nothing can run."""

    @property
    def pays(self) -> bool | None:
        """Whether chaining is faster for every seed; None: for some, or it was not reached."""
        ratios = [outcome.ratio for outcome in self.outcomes]
        if not ratios or any(ratio is None for ratio in ratios):
            return None
        wins = {ratio is not None and ratio > 1 for ratio in ratios}
        return wins.pop() if len(wins) == 1 else None


def size_of(runs: Sequence[Recorded], cluster: ClusterSpec, policy: str) -> Size:
    """Return what the recorded runs of one model tell about a cluster.

    Args:
        runs: of one model and tier, by seed.
        cluster: where it would train.
        policy: with its parameters; it does not look ahead.

    Raises:
        ConfigError: no such policy, it looks ahead, or the cluster's times cannot be modelled.
    """
    scene = _scene(runs[0], cluster)
    unusable = tuple(g for g in scene.tier.ladder.rungs if _fastest(scene, g) is None)
    fitted, _ = fit_ladder(scene, seeing_policy(policy))
    try:
        outcomes = tuple(outcome_of(run, fitted, policy) for run in runs)
    except ConfigError as error:  # no strategy of any batch size: too little memory, no divisor
        return Size(cluster=cluster, unusable=unusable, why_none=str(error))
    return Size(cluster=cluster, unusable=unusable, outcomes=outcomes)


def sized(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """Return as many nodes of a cluster as hold a number of GPUs.

    Raises:
        ConfigError: they are no whole number of nodes.
    """
    nodes, rest = divmod(num_gpus, cluster.gpus_per_node)
    if rest or not nodes:
        nearest = max(1, round(num_gpus / cluster.gpus_per_node)) * cluster.gpus_per_node
        raise ConfigError(
            f"{num_gpus} GPUs are no whole number of nodes of {cluster.name}, which have "
            f"{cluster.gpus_per_node} each; nearest: {nearest}"
        )
    name = f"{cluster.name.partition('@')[0]}@{nodes}"
    return config.override(cluster, {"name": name, "num_nodes": nodes}, where=name)


def _scene(run: Recorded, cluster: ClusterSpec) -> Scene:
    tier = config.override(run.tier, {"clock.kind": "modelled"})
    scene = Scene.of(tier, run.model)
    return replace(
        scene,
        cluster=cluster,
        reference=time_model(tier.clock.time_source, scene.model, cluster),
        switch_cost=SwitchCost(scene.model, cluster),
    )


def outcome_of(run: Recorded, scene: Scene, policy: str) -> Outcome:
    """Return one recorded run's outcome on the cluster of a scene, whose ladder fits it.

    Raises:
        ConfigError: a rung has no feasible strategy.
    """
    noise = ProgressNoise.of(run.recording)
    rungs = scene.tier.ladder.rungs
    fixed = tuple(_fixed(scene, rungs, noise))
    # The budget is the time that the smallest batch needs: a chain that takes longer does not pay.
    # A walk stops before an iteration that would pass it, but the last one may end the progress.
    times = [scene.reference.time_s(one.strategy) for one in fixed]
    spare = math.ceil(max(times) / times[0]) if times else 0
    budget = {"budget.iterations": iterations_needed(rungs, noise) + spare}
    done = Walk(scene.under(config.override(scene.tier, budget)), policy, noise).finish()
    chain_s = chain_time_s(done.stages, noise)
    return Outcome(
        seed=run.seed,
        rungs=rungs,
        chain=tuple(s for s in done.stages if chain_s is None or s.train_s < chain_s),
        chain_s=chain_s,
        fixed=fixed,
        recorded_s=retimed_s(scene, [step.gbs for step in run.recording.steps]),
        end_steps=noise.end_steps,
    )


def _fixed(scene: Scene, rungs: Iterable[int], noise: ProgressNoise) -> Iterable[Fixed]:
    for gbs in rungs:
        if (strategy := _fastest(scene, gbs)) is not None:
            iteration_s = scene.reference.time_s(strategy)
            yield Fixed(strategy=strategy, seconds=fixed_time_s(gbs, iteration_s, noise))


def retimed_s(scene: Scene, sizes: Sequence[int]) -> float | None:
    """Return the seconds of a sequence of batch sizes, each at its fastest strategy.

    Args:
        scene: model, cluster and clock.
        sizes: the global batch size of every iteration, samples.

    Returns:
        Seconds with the switches between them; None: one of the sizes cannot run.
    """
    stages = [(gbs, sum(1 for _ in run)) for gbs, run in groupby(sizes)]
    fastest = {gbs: _fastest(scene, gbs) for gbs, _ in stages}
    known = [(fastest[gbs], count) for gbs, count in stages]
    chain = [(strategy, count) for strategy, count in known if strategy is not None]
    if len(chain) < len(stages):
        return None
    preset = scene.tier.clock.switch_cost
    switching = (
        scene.switch_cost.seconds(old, new, preset) for (old, _), (new, _) in pairwise(chain)
    )
    return sum(n * scene.reference.time_s(s) for s, n in chain) + sum(switching)


def _fastest(scene: Scene, gbs: int) -> Strategy | None:
    """Return the fastest strategy of a batch size by the reference clock; None: none can run."""
    can_run = [s for s in scene.space.at(gbs) if scene.reference.why_not(s) is None]
    return best(can_run, scene.reference)[0] if can_run else None
