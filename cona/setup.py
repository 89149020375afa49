"""Resolves a request into everything that a run is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cona import config, registry
from cona.clock import Clock, MeasuredClock, ModelledClock
from cona.cost.table import table_path
from cona.data import PreparedData, prepare
from cona.engine import factory
from cona.engine.base import Engine, LiveEngine
from cona.errors import ConfigError
from cona.live import LiveTrainer
from cona.lr import LearningRate, needs_gns
from cona.measured import MeasuredTrajectory
from cona.policy import Policy, ProbingPolicy, Problem
from cona.provenance import METHOD_VERSION, recipe_versions
from cona.runlog import sha256
from cona.scene import Scene
from cona.segments import Segment
from cona.specs import ModelSpec, TierSpec
from cona.strategy import Layout
from cona.trainer import Trainer
from cona.trajectory import Trajectory
from cona.walk import Walk

if TYPE_CHECKING:
    from cona.engine.ranks import Leader


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Which run: one model, one policy, one seed, under the settings of a tier."""

    tier: TierSpec
    model: str
    """Name of a model specification."""
    policy: str
    """Policy with its parameters, e.g. fixed-best-gbs64."""
    seed: int
    results: Path
    """Root of the results; the run goes to <results>/<tier>/<model>/<policy>/seed<k>/."""
    ranks: Leader | None = None
    """Measured clock: the ranks that execute it; None: nothing can be trained here."""

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.model_folder / self.policy / f"seed{self.seed}"

    @property
    def model_folder(self) -> Path:
        """Where the runs and trajectories of the model go."""
        return self.results / self.tier.name / config.load(ModelSpec, self.model).name


class Setup:
    """Everything that a run is made of, resolved from its request.

    Args:
        request: which run.

    Raises:
        ConfigError, DataError: a name, parameter or corpus is not usable.
    """

    def __init__(self, request: RunRequest) -> None:
        if not 0 <= request.seed < 2**63:
            raise ConfigError(f"seed {request.seed}: must be between 0 and 2**63 - 1")
        self.request = request
        self.policy: Policy = registry.policy(request.policy)
        self.scene = scene = Scene.of(request.tier, request.model).with_engine_of(self.policy)
        self.tier = tier = scene.tier
        self.is_measured = tier.clock.kind == "measured"
        if self.is_measured:
            factory.check(tier.engine, tier.techniques)
        self.model, self.priced_model = scene.trained_model, scene.model
        self.cluster, self.space = scene.cluster, scene.space
        self.time_source, self.switch_cost = scene.reference, scene.switch_cost
        rule = getattr(self.policy, "lr_rule", None)  # optional for outside policies
        self.lr = LearningRate(tier.learning_rate, self.model, rule)
        self.belief = scene.belief(self.policy)
        self.time_budget_s = scene.time_budget_s
        self.prepared: PreparedData = prepare(tier.data.corpus, self.model)
        self.recipe = self._recipe()
        self.config_hash = config.content_hash(
            tier.settings(), self.model, self.priced_model, self.cluster
        )
        self.run_key = config.content_hash(
            METHOD_VERSION, self._run_settings(), self.recipe, request.policy, self.model.name
        )
        self.comparison_key = self._comparison_key()

    def _recipe(self) -> dict[str, Any]:
        """Everything that determines a trajectory, except the sequence of batch sizes."""
        tier, model = self.tier, self.model
        uncounted = {"name", "description", "source", "priced_as"}
        return {
            "model": model.model_dump(mode="json", exclude=uncounted),
            "data_hash": self.prepared.content_hash,
            "seed": self.request.seed,
            "lr": {**tier.learning_rate.model_dump(mode="json"), "rule": self.lr.rule},
            "gns": tier.gns.model_dump(mode="json") if needs_gns(self.lr.rule) else None,
            "exec_mbs_max": tier.exec_mbs_max,
            "evaluation_samples": tier.evaluation.num_samples,
            "probe_samples": tier.evaluation.probe_samples,
            "versions": recipe_versions(),
        }

    def _run_settings(self) -> dict[str, Any]:
        """The tier's settings that change a single run; not which other runs there are."""
        others = {"name", "description", "gives_verdicts", "models", "policies"}
        others |= {"seeds", "seeds_of"}
        process = {"share_process", "jobs", "snapshot_interval_samples", "snapshots_kept", "data"}
        settings = self.tier.settings(without=others | process)
        priced = self.priced_model.model_dump(mode="json", exclude={"description", "source"})
        cluster = self.cluster.model_dump(mode="json", exclude={"description", "source"})
        return {"tier": settings, "priced_model": priced, "cluster": cluster} | self._tables()

    def _tables(self) -> dict[str, str]:
        """Checksums of the tables that give times: their content counts, not their names."""
        names = (self.time_source.name, self.belief.name)
        paths = {name: path for name in names if (path := table_path(name))}
        return {name: sha256(path) for name, path in paths.items()}

    def _comparison_key(self) -> str:
        """Return what two runs of a model must share for their TTPs to be compared."""
        own = {"seed", "lr", "gns"}
        training = {k: v for k, v in self.recipe.items() if k not in own}
        tier = self.tier
        return config.content_hash(
            training,
            tier.learning_rate,
            tier.settings()["clock"],
            tier.evaluation,
            self.time_budget_s,
        )

    def problem(self) -> Problem:
        """Return what the policy may know."""
        return self.scene.problem(self.policy)

    def clock(self) -> Clock:
        """Return the clock at zero."""
        if not self.is_measured:
            return ModelledClock(self.time_source, self.switch_cost, self.tier.clock.switch_cost)
        names = {"cluster": self.cluster.name, "priced_as": self.model.name}
        return MeasuredClock(names | self._executed_by())

    def _executed_by(self) -> dict[str, Any]:
        """Return what executes a measured run: the ranks and their engine."""
        engine = self.tier.engine.model_dump(mode="json")
        return {"hardware": self._ranks.hardware, "engine": engine}

    def trajectory(self) -> Walk:
        """Return a walk at its start: at the root of this recipe's tree, or on real ranks."""
        walk = self._measured_trajectory() if self.is_measured else self._modelled_trajectory()
        if isinstance(self.policy, ProbingPolicy):
            self.policy.attach(walk.probe)
        return walk

    def _modelled_trajectory(self) -> Trajectory:
        root = Segment(self.request.model_folder / "_trajectories", recipe=self.recipe)
        trainer = Trainer(self._engine, self.prepared, self.tier, self.request.seed)
        return Trajectory(root, trainer, self.lr, self.tier)

    def _measured_trajectory(self) -> MeasuredTrajectory:
        request = self.request
        head = {"run_key": self.run_key, **self._executed_by()}
        trainer = LiveTrainer(self._live_engine, self.prepared, self.tier, request.seed)
        return MeasuredTrajectory(request.folder, head, trainer, self.lr, self.tier)

    @property
    def _ranks(self) -> Leader:
        if self.request.ranks is None:
            raise ConfigError(
                "the measured clock needs ranks, and this process is none; start "
                f"`cona run --model {self.model.name} --policy {self.request.policy} "
                f"--clock measured --nproc {self.cluster.num_gpus}`"
            )
        return self.request.ranks

    def _live_engine(self, layout: Layout) -> LiveEngine:
        return self._ranks.build(
            self.model,
            layout,
            seed=self.request.seed,
            engine=self.tier.engine,
            techniques=self.tier.techniques,
        )

    def _engine(self) -> Engine:
        # Imported here: walking recorded iterations must not pay for torch and megatron.
        from cona.engine.megatron import build_engine

        return build_engine(self.model, self.request.seed)
