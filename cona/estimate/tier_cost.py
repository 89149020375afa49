"""What a tier takes: its jobs, hours, disk and memory, per model and in total."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cona import config
from cona.estimate.look_ahead import looks_ahead
from cona.estimate.run_cost import ProcessCosts, RankCosts, RunCost, RunCosts
from cona.pipeline import Group, Pipeline
from cona.resources import Geometry, memory_mb
from cona.scene import Scene
from cona.specs import ClusterSpec, ModelSpec, TierSpec

START_S = 60.0
"""ASSUMED: a job's imports, data and initial weights, before the first iteration."""
NUM_REPORT_JOBS = 4
"""Planners, tables, figures and the report; MLflow is filled by Snakemake itself."""
JOBS_AT_ONCE = 100
"""Jobs that Snakemake submits at once: `jobs` of the profile for SLURM."""

Seconds = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What one run of a policy that looks ahead trains beside itself."""

    multiplier: float
    """The run and its forks, in runs without forks."""
    num_probes: int
    """Evaluations of forks, and of the state that they start from."""


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """All runs of one model, at most."""

    model: str
    num_runs: int
    num_jobs: int
    """Training jobs."""
    num_turns: int
    """Turns that they take: a job longer than its time limit requeues itself."""
    budget_s: float
    """Seconds of the train clock of every run."""
    look_ahead: dict[str, Ahead]
    """By policy that looks ahead."""
    seconds: Seconds
    """Seconds of all jobs together, by what they go to."""
    geometry: Geometry
    """Nodes, ranks and GPUs of a job."""
    disk_bytes: float
    """That finished runs leave."""
    dropped_bytes: float
    """That a job takes beside that while it runs, and gives back."""
    gpu_memory_bytes: float | None
    """Of the fullest rank; None: there is no GPU."""
    host_memory_bytes: float
    """That a job asks for, per rank."""

    @property
    def peak_disk_bytes(self) -> float:
        """Bytes at the fullest moment: all runs are there, and the last jobs go on."""
        return self.disk_bytes + self.dropped_bytes * min(self.num_jobs, JOBS_AT_ONCE)

    @property
    def job_hours(self) -> float:
        """Hours of all jobs, one after the other."""
        return sum(self.seconds.values()) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours times the GPUs of a job."""
        return self.job_hours * self.geometry.num_nodes * self.geometry.gpus_per_node

    @property
    def host_hours(self) -> float:
        """Hours times the nodes of a job."""
        return self.job_hours * self.geometry.num_nodes


@dataclass(frozen=True, kw_only=True)
class TierCost:
    """A tier on a cluster."""

    tier: TierSpec
    cluster: ClusterSpec
    models: tuple[ModelCost, ...]

    @property
    def num_jobs(self) -> int:
        """All jobs: a model's data, its training, and the reports."""
        return sum(model.num_jobs + 1 for model in self.models) + NUM_REPORT_JOBS

    @property
    def num_runs(self) -> int:
        """Runs of all models."""
        return sum(model.num_runs for model in self.models)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all models."""
        return sum(model.gpu_hours for model in self.models)

    @property
    def host_hours(self) -> float:
        """Host-hours of all models."""
        return sum(model.host_hours for model in self.models)

    @property
    def disk_bytes(self) -> float:
        """Bytes of all models that finished runs leave."""
        return sum(model.disk_bytes for model in self.models)

    @property
    def peak_disk_bytes(self) -> float:
        """Bytes of all models at the fullest moment: the jobs that take most go on last."""
        jobs = [model.dropped_bytes for model in self.models for _ in range(model.num_jobs)]
        return self.disk_bytes + sum(sorted(jobs, reverse=True)[:JOBS_AT_ONCE])


def estimate(
    pipeline: Pipeline, follow: Callable[[Sequence[str]], Iterable[str]] = iter
) -> TierCost:
    """Return what a tier takes at most, without training anything.

    Args:
        pipeline: the tier, on the cluster that it names.
        follow: passes on the models' names one by one, e.g. to show progress.

    Raises:
        ConfigError: a model or the cluster is not usable, or no strategy fits.
    """
    tier = pipeline.tier
    cluster = config.load(ClusterSpec, tier.cluster)
    models = tuple(_Jobs(pipeline, model).cost() for model in follow(tier.models))
    return TierCost(tier=tier, cluster=cluster, models=models)


class _Jobs:
    """The training jobs of one model.

    Args:
        pipeline: the tier and who trains together.
        model: its name.
    """

    def __init__(self, pipeline: Pipeline, model: str) -> None:
        self._pipeline, self._tier, self._model = pipeline, pipeline.tier, model
        kind = RankCosts if self._tier.clock.kind == "measured" else ProcessCosts
        self._costs: RunCosts = kind(Scene.of(self._tier, model))

    @cached_property
    def _runs(self) -> list[tuple[Group, int, list[RunCost]]]:
        """Each job: who trains, under which seed, and what that takes."""
        known: set[tuple[object, int]] = set()
        found = []
        for group in self._pipeline.groups:
            for seed in self._tier.seeds_for(group.policies[0]):
                costs = [self._run(policy, seed, known) for policy in group.policies]
                found.append((group, seed, costs))
        return found

    def _run(self, policy: str, seed: int, known: set[tuple[object, int]]) -> RunCost:
        """Return a run's cost; what another run of this seed has trained is read."""
        shared = self._costs.shared(policy)
        is_known = shared is not None and (shared, seed) in known
        known.add((shared, seed))
        return self._costs.reread(policy) if is_known else self._costs.run(policy)

    def cost(self) -> ModelCost:
        """Return the sums."""
        runs = [run for _, _, costs in self._runs for run in costs]
        turns = [self._num_turns(costs) for _, _, costs in self._runs]
        spec = config.load(ModelSpec, self._model)
        return ModelCost(
            model=self._model,
            num_runs=len(runs),
            num_jobs=len(turns),
            num_turns=sum(turns),
            budget_s=self._costs.scene.time_budget_s,
            look_ahead=self._look_ahead(),
            seconds=_sums(runs) | {"start": START_S * sum(turns)},
            geometry=self._pipeline.geometry,
            disk_bytes=sum(run.disk_bytes for run in runs),
            dropped_bytes=max(run.dropped_bytes for run in runs),  # a job trains one at a time
            gpu_memory_bytes=self._costs.memory_bytes,
            host_memory_bytes=memory_mb(self._tier.jobs, spec) * 1e6,
        )

    def _num_turns(self, costs: Iterable[RunCost]) -> int:
        limits = self._tier.jobs
        usable_s = 60 * limits.runtime_min - limits.save_s - START_S
        return math.ceil(sum(run.total_s for run in costs) / max(usable_s, 1.0)) or 1

    def _look_ahead(self) -> dict[str, Ahead]:
        costs = {p: self._costs.run(p) for p in self._tier.policies if looks_ahead(p)}
        return {
            policy: Ahead(
                multiplier=1 + cost.look_ahead_s / cost.train_s, num_probes=cost.num_probes
            )
            for policy, cost in costs.items()
        }


def _sums(runs: Iterable[RunCost]) -> Seconds:
    runs = list(runs)
    return {
        "train": sum(run.train_s for run in runs),
        "look_ahead": sum(run.look_ahead_s for run in runs),
        "evaluation": sum(run.evaluation_s for run in runs),
        "checkpoint": sum(run.checkpoint_s for run in runs),
    }
