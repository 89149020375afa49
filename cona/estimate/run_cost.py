"""What one run takes at most: on ranks, or in the one process of the modelled clock.

A policy that changes its batch size is priced as if it stayed where that takes most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from cona import config, registry
from cona.cost import TimeModel, time_model
from cona.cost.ranking import memory_bytes
from cona.estimate.look_ahead import LookAhead, looks_ahead, most_look_ahead
from cona.measured_record import CHECKPOINTS_KEPT
from cona.planning import DEFAULT_PRESET, at_gbs_min
from cona.scene import Scene
from cona.search import best
from cona.strategy import Strategy, exec_mbs

STATE_BYTES_PER_PARAM = 12
"""Of a checkpoint or snapshot: fp32 weight and the two moments of Adam."""
CHECKPOINT_BYTES = 200_000
"""Of a checkpoint's index, checksums and headers; measured: 160 kB of four ranks."""
LINE_BYTES = 700
"""Of the logs, per iteration; measured: 390 of metrics.jsonl and 210 to 310 of the records."""
FOLDER_BYTES = 20_000
"""Of a run's other files; measured."""
DISK_BYTES_PER_S = 1e9
"""ASSUMED: rate at which a checkpoint is written."""
EVALUATION_SHARE = 0.25
"""ASSUMED: an evaluation against the training of as many samples, as on the modelled clock."""
CPU_FLOPS = 15e9
"""Of a process without a GPU; measured: 14 to 23 GFLOP/s of one core on models of two layers."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Seconds that a run occupies its ranks, by what they go to, and bytes that it leaves."""

    train_s: float = 0.0
    look_ahead_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    disk_bytes: float = 0.0
    dropped_bytes: float = 0.0
    """Bytes of states that stand while the run goes on, and are deleted by its end."""
    num_probes: int = 0
    """Evaluations of a look-ahead."""

    @property
    def total_s(self) -> float:
        """Seconds of the run; a job's start is not in them."""
        return self.train_s + self.look_ahead_s + self.evaluation_s + self.checkpoint_s


class RunCosts(ABC):
    """What the runs of one model cost.

    Args:
        scene: tier, model, cluster, prices and budget.

    Raises:
        ConfigError: no strategy of any batch size is feasible.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tier = scene, scene.tier
        self.fastest = _fastest(scene)
        num_params = scene.trained_model.num_params
        self.state_bytes = STATE_BYTES_PER_PARAM * num_params + CHECKPOINT_BYTES
        self._known: dict[str, RunCost] = {}

    def run(self, policy: str) -> RunCost:
        """Return the cost of one run of a policy."""
        if policy not in self._known:
            self._known[policy] = self._run(policy)
        return self._known[policy]

    def _run(self, policy: str) -> RunCost:
        ahead = most_look_ahead(policy, self.scene) if looks_ahead(policy) else LookAhead()
        rungs = self._rungs(policy)
        write_s = self.state_bytes / DISK_BYTES_PER_S
        return RunCost(
            train_s=max(map(self._train_s, rungs)),
            look_ahead_s=self._look_ahead_s(ahead),
            evaluation_s=max(map(self._evaluation_s, rungs)),
            checkpoint_s=max(map(self._num_checkpoints, rungs)) * write_s,
            disk_bytes=max(self._disk_bytes(gbs, ahead) for gbs in rungs),
            dropped_bytes=max(map(self._num_dropped, rungs)) * self.state_bytes,
            num_probes=ahead.num_probes,
        )

    def reread(self, policy: str) -> RunCost:
        """Return the cost of a run whose trajectory another one has trained."""
        return RunCost(disk_bytes=max(map(self._log_bytes, self._rungs(policy))))

    def shared(self, policy: str) -> tuple[int, str | None] | None:
        """Return what runs of one seed have in common that train once; None: each by itself."""
        return None

    @property
    @abstractmethod
    def memory_bytes(self) -> float | None:
        """Memory of the fullest GPU; None: there is no GPU, or the time source does not say."""

    @abstractmethod
    def _sample_s(self, gbs: int) -> float:
        """Seconds of what really executes, per sample of an iteration."""

    @abstractmethod
    def _look_ahead_s(self, ahead: LookAhead) -> float:
        """Seconds of a look-ahead."""

    @abstractmethod
    def _disk_bytes(self, gbs: int, ahead: LookAhead) -> float:
        """Bytes that a run leaves which stays at a batch size."""

    @abstractmethod
    def _num_dropped(self, gbs: int) -> int:
        """States that stand at once and do not stay, of a run which stays at a batch size."""

    def _rungs(self, policy: str) -> list[int]:
        """Return the batch sizes that a policy may train at: where it names one, that one."""
        own = getattr(registry.policy(policy), "gbs", None)
        return [own] if own in self.fastest else list(self.fastest)

    def _iterations(self, gbs: int) -> int:
        return int(self.scene.time_budget_s / self.scene.reference.time_s(self.fastest[gbs]))

    def _train_s(self, gbs: int) -> float:
        return self._iterations(gbs) * gbs * self._sample_s(gbs)

    def _evaluation_s(self, gbs: int) -> float:
        """Seconds of the evaluations on the grid, at the start and at the end."""
        settings = self.tier.evaluation
        number = self._iterations(gbs) * gbs // settings.interval_samples + 2
        return number * settings.num_samples * self._sample_s(gbs) * EVALUATION_SHARE

    def _probes_s(self, ahead: LookAhead) -> float:
        num_samples = ahead.num_probes * self.tier.evaluation.probe_samples
        return num_samples * max(map(self._sample_s, self.fastest)) * EVALUATION_SHARE

    def _num_checkpoints(self, gbs: int) -> int:
        return self._iterations(gbs) * gbs // self.tier.snapshot_interval_samples

    def _log_bytes(self, gbs: int) -> float:
        return FOLDER_BYTES + LINE_BYTES * self._iterations(gbs)


class RankCosts(RunCosts):
    """Runs on the measured clock: each has the ranks of the cluster to itself."""

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the fullest rank's GPU."""
        if self.scene.cluster.gpu == "cpu":
            return None
        found = [memory_bytes(self.scene.reference, s) for s in self.fastest.values()]
        return max((size for size in found if size is not None), default=None)

    def _sample_s(self, gbs: int) -> float:
        return self.scene.reference.time_s(self.fastest[gbs]) / gbs

    def _train_s(self, gbs: int) -> float:
        return self.scene.time_budget_s

    def _look_ahead_s(self, ahead: LookAhead) -> float:
        return ahead.train_s + ahead.switch_s + self._probes_s(ahead)

    def _disk_bytes(self, gbs: int, ahead: LookAhead) -> float:
        left = min(1, self._num_checkpoints(gbs))  # a finished run keeps the last one
        return left * self.state_bytes + self._log_bytes(gbs)

    def _num_dropped(self, gbs: int) -> int:
        written = self._num_checkpoints(gbs)
        return max(0, min(written, CHECKPOINTS_KEPT + 1) - 1)  # an old one goes after the new one


class ProcessCosts(RunCosts):
    """Runs on the modelled clock: one process trains what the clock's seconds allow."""

    def shared(self, policy: str) -> tuple[int, str | None] | None:
        """Return batch size and rule of the learning rate of a policy that keeps its strategy."""
        found = registry.policy(policy)
        gbs = getattr(found, "gbs", None)
        return (gbs, getattr(found, "lr_rule", None)) if found.kind == "offline" and gbs else None

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the one GPU, if there is one."""
        if not self.tier.jobs.gpus:
            return None
        found = [memory_bytes(self._host, self._alone(gbs)) for gbs in self.fastest]
        return max((size for size in found if size is not None), default=None)

    @cached_property
    def _host(self) -> TimeModel:
        """What prices the process on its one GPU."""
        one = config.override(self.scene.cluster, {"num_nodes": 1, "gpus_per_node": 1})
        return time_model(DEFAULT_PRESET, self.scene.trained_model, one)

    def _alone(self, gbs: int) -> Strategy:
        return Strategy(dp=1, tp=1, pp=1, mbs=exec_mbs(gbs, self.tier.exec_mbs_max), gbs=gbs)

    def _sample_s(self, gbs: int) -> float:
        if self.tier.jobs.gpus:
            return self._host.time_s(self._alone(gbs)) / gbs
        model = self.scene.trained_model
        return 6 * model.num_params * model.seq_length / CPU_FLOPS  # forward and backward

    def _look_ahead_s(self, ahead: LookAhead) -> float:
        return ahead.samples * max(map(self._sample_s, self.fastest)) + self._probes_s(ahead)

    def _disk_bytes(self, gbs: int, ahead: LookAhead) -> float:
        interval, kept = self.tier.snapshot_interval_samples, self.tier.snapshots_kept
        number = self._num_checkpoints(gbs) + ahead.samples // interval
        if kept:  # in each segment: one for every batch size of a run, one for every fork
            number = min(number, kept * (len(self.fastest) + ahead.num_probes))
        return number * self.state_bytes + self._log_bytes(gbs)

    def _num_dropped(self, gbs: int) -> int:
        kept = self.tier.snapshots_kept
        return int(kept is not None and self._num_checkpoints(gbs) > kept)


def _fastest(scene: Scene) -> dict[int, Strategy]:
    """Return the best strategy of every batch size that has a feasible one."""
    found = {}
    for gbs in scene.tier.ladder.rungs:
        strategies = [s for s in scene.space.at(gbs) if scene.reference.why_not(s) is None]
        if strategies:
            found[gbs] = best(strategies, scene.reference)[0]
    if not found:  # say why
        best(at_gbs_min(scene.space), scene.reference)
    return found
