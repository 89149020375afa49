"""Resolves a request into everything that a run is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cona import config, registry
from cona.cost import SwitchCost, time_model
from cona.cost.table import table_path
from cona.data import PreparedData, prepare
from cona.engine.base import Engine
from cona.errors import ConfigError
from cona.lr import LearningRate, needs_gns
from cona.policy import Policy, Problem
from cona.provenance import METHOD_VERSION, recipe_versions
from cona.runlog import sha256
from cona.search import best
from cona.segments import Segment
from cona.specs import ClusterSpec, ModelSpec, TierSpec
from cona.strategy import StrategySpace
from cona.trainer import Trainer
from cona.trajectory import Trajectory


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
        tier = request.tier
        self.request, self.tier = request, tier
        self.policy: Policy = registry.policy(request.policy)
        self.model = config.load(ModelSpec, request.model)
        priced = self.model.priced_as
        self.priced_model = config.load(ModelSpec, priced) if priced else self.model
        self.cluster = config.load(ClusterSpec, tier.cluster)
        rule = getattr(self.policy, "lr_rule", None)  # optional for outside policies
        self.lr = LearningRate(tier.learning_rate, self.model, rule)
        self.space = StrategySpace(
            model=self.priced_model,
            num_gpus=self.cluster.num_gpus,
            ladder=tier.ladder,
            techniques=tier.techniques,
        )
        self.time_source = time_model(tier.clock.time_source, self.priced_model, self.cluster)
        belief = getattr(self.policy, "belief", None) or tier.belief
        self.belief = time_model(belief, self.priced_model, self.cluster)
        self.switch_cost = SwitchCost(self.priced_model, self.cluster)
        smallest = self.space.at(tier.ladder.gbs_min)
        self.time_budget_s = tier.budget.iterations * best(smallest, self.time_source)[1]
        self.prepared: PreparedData = prepare(tier.data.corpus, self.model)
        self.recipe = self._recipe()
        self.config_hash = config.content_hash(tier, self.model, self.priced_model, self.cluster)
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
        others = {"name", "description", "gives_verdicts", "models", "policies", "seeds"}
        process = {"share_process", "jobs", "snapshot_interval_samples", "snapshots_kept", "data"}
        settings = self.tier.model_dump(mode="json", exclude=others | process)
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
            training, tier.learning_rate, tier.clock, tier.evaluation, self.time_budget_s
        )

    def problem(self) -> Problem:
        """Return what the policy may know."""
        return Problem(
            tier=self.tier,
            model=self.priced_model,
            trained_model=self.model,
            cluster=self.cluster,
            space=self.space,
            belief=self.belief,
            switch_cost=self.switch_cost,
            time_budget_s=self.time_budget_s,
        )

    def trajectory(self) -> Trajectory:
        """Return a walk at the root of this recipe's tree."""
        root = Segment(self.request.model_folder / "_trajectories", recipe=self.recipe)
        trainer = Trainer(self._engine, self.prepared, self.tier, self.request.seed)
        return Trajectory(root, trainer, self.lr, self.tier)

    def _engine(self) -> Engine:
        # Imported here: walking recorded iterations must not pay for torch and megatron.
        from cona.engine.megatron import build_engine

        return build_engine(self.model, self.request.seed)
