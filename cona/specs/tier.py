"""Tiers: the sizes of the experiment."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, model_validator

from cona.errors import nearest
from cona.specs.base import Count, Name, Seed, Spec
from cona.specs.sections import (
    BudgetSpec,
    ClockSpec,
    ControllerSpec,
    DataSpec,
    DivergenceSpec,
    EngineSpec,
    EvaluationSpec,
    GnsSpec,
    JobSpec,
    LadderSpec,
    LearningRateSpec,
    OracleSpec,
)
from cona.strategy import Techniques

_Seeds = Annotated[tuple[Seed, ...], Field(min_length=1)]


class TierSpec(Spec):
    """One size of the experiment: which models, policies and seeds, for how long."""

    name: Name
    """Name on the command line; results go to results/<name>/."""
    description: str
    """One line for `cona tiers`."""
    gives_verdicts: bool = False
    """Whether the claims table may judge from this tier; smoke and quick never do."""
    data: DataSpec = DataSpec()
    models: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Names of models under config/models/."""
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    """Policies with their parameters, e.g. fixed-best-gbs64."""
    seeds: _Seeds = (0,)
    """Seeds: of the initial weights and of the sample order."""
    seeds_of: dict[str, _Seeds] = Field(default_factory=dict)
    """Seeds of the policies that have others: more for the headline, fewer for the costly."""
    cluster: str = "a100x4-2node"
    """Name of the target cluster under config/clusters/."""
    clock: ClockSpec = ClockSpec()
    techniques: Techniques = Techniques(zero_stage=1, recompute="full")
    """What every strategy uses beside its degrees; the default is the paper's."""
    belief: str = "improved"
    """The policies' own time model, unless they bring one; not the same as clock.time_source."""
    ladder: LadderSpec = LadderSpec()
    budget: BudgetSpec = BudgetSpec()
    evaluation: EvaluationSpec
    gns: GnsSpec = GnsSpec()
    learning_rate: LearningRateSpec = LearningRateSpec()
    controller: ControllerSpec = ControllerSpec()
    oracle: OracleSpec = OracleSpec()
    divergence: DivergenceSpec = DivergenceSpec()
    engine: EngineSpec = EngineSpec()
    exec_mbs_max: Count = 16
    """Largest micro-batch that the virtual cluster really executes, samples."""
    snapshot_interval_samples: Count
    """Samples between snapshots of a trajectory, or checkpoints of a measured run: what a kill can
    cost."""
    snapshots_kept: Count | None = None
    """Latest snapshots kept in each segment; None: all, so that a later branch starts nearby."""
    share_process: bool = False
    """Train a model's policies in two processes instead of one job per run."""
    jobs: JobSpec = JobSpec()

    def seeds_for(self, policy: str) -> tuple[int, ...]:
        """Return the seeds under which a policy is run."""
        return self.seeds_of.get(policy, self.seeds)

    def settings(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return what runs depend on; what only the measured clock has is left out elsewhere.

        Args:
            without: names of settings to leave out.
        """
        left_out: dict[str, Any] = dict.fromkeys(without, True)
        if self.clock.kind == "modelled":
            left_out |= {"engine": True, "clock": {"warmup_iterations"}, "budget": {"seconds"}}
        if self.divergence == DivergenceSpec():  # changes nothing in a run that does not diverge
            left_out["divergence"] = True
        return self.model_dump(mode="json", exclude=left_out)

    @model_validator(mode="after")
    def _once(self) -> TierSpec:
        for key in ("models", "policies", "seeds"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                twice = next(v for v in values if values.count(v) > 1)
                raise ValueError(f"{key}: '{twice}' is listed twice; list it once")
        return self

    @model_validator(mode="after")
    def _seeds_of_policies(self) -> TierSpec:
        for policy, seeds in self.seeds_of.items():
            if policy not in self.policies:
                raise ValueError(
                    f"seeds_of: '{policy}' is not among the policies: "
                    f"{nearest(policy, self.policies)}"
                )
            if len(set(seeds)) < len(seeds):
                raise ValueError(f"seeds_of: '{policy}' lists a seed twice; list it once")
        return self

    @model_validator(mode="after")
    def _grid(self) -> TierSpec:
        interval, gbs_max = self.evaluation.interval_samples, self.ladder.gbs_max
        if interval % gbs_max:
            nearest = max(1, round(interval / gbs_max)) * gbs_max
            raise ValueError(
                f"evaluation.interval_samples {interval} is not a multiple of gbs_max {gbs_max}; "
                f"nearest: {nearest}"
            )
        return self
