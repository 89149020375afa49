"""A model on a cluster under a tier's settings: what a policy may know, without any training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cona import config
from cona.cost import SwitchCost, TimeModel, time_model
from cona.engine import factory
from cona.errors import ConfigError
from cona.planning import at_gbs_min
from cona.policy import Policy, Problem
from cona.search import best
from cona.specs import ClusterSpec, ModelSpec, TierSpec
from cona.strategy import StrategySpace


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Model, cluster, prices and settings; no corpus and no engine."""

    tier: TierSpec
    """Settings of the experiment; its ladder and budget may be replaced by `under`."""
    trained_model: ModelSpec
    """The model that would be trained."""
    model: ModelSpec
    """The model that the clock prices."""
    cluster: ClusterSpec
    """The target cluster."""
    reference: TimeModel
    """The reference time source."""
    switch_cost: SwitchCost
    """Seconds of a switch; remembers what it has computed."""

    @classmethod
    def of(cls, tier: TierSpec, model_name: str) -> Scene:
        """Load what a tier and a model's name mean; raises ConfigError."""
        trained = config.load(ModelSpec, model_name)
        # Real ranks train the model itself: it is what its seconds are seconds of.
        priced = None if tier.clock.kind == "measured" else trained.priced_as
        model = config.load(ModelSpec, priced) if priced else trained
        cluster = config.load(ClusterSpec, tier.cluster)
        return cls(
            tier=tier,
            trained_model=trained,
            model=model,
            cluster=cluster,
            reference=time_model(tier.clock.time_source, model, cluster),
            switch_cost=SwitchCost(model, cluster),
        )

    def under(self, tier: TierSpec) -> Scene:
        """Return the scene with another ladder or budget of the same cluster and clock."""
        return replace(self, tier=tier)

    def with_engine_of(self, policy: Policy) -> Scene:
        """Return the scene under the engine that a policy brings, if it brings one.

        The time budget stays what the tier's engine gives, the same for all policies.

        Raises:
            ConfigError: the clock is modelled, so there is no engine to choose.
        """
        tier, kind = self.tier, getattr(policy, "engine", None)
        if kind is None:
            return self
        if tier.clock.kind == "modelled":
            raise ConfigError(
                f"policy '{policy.name}-engine={kind}': the modelled clock has one engine only; "
                f"nearest: --clock measured, or the policy without its engine"
            )
        changes = factory.brought(kind, tier.engine, tier.techniques)
        budget = {"budget.seconds": self.time_budget_s}
        return self.under(config.override(tier, changes | budget))

    @property
    def space(self) -> StrategySpace:
        """S(gbs): the strategies that divide."""
        return StrategySpace(
            model=self.model,
            num_gpus=self.cluster.num_gpus,
            ladder=self.tier.ladder,
            techniques=self.tier.techniques,
            has_pipelines=not self._is_measured or factory.has_pipelines(self.tier.engine),
        )

    @property
    def _is_measured(self) -> bool:
        return self.tier.clock.kind == "measured"

    @property
    def time_budget_s(self) -> float:
        """Seconds of the train clock that every policy gets: method.md 7.

        They follow from the reference T of the best strategy of gbs_min, unless a tier on the
        measured clock gives them.

        Raises:
            ConfigError: no strategy of gbs_min is feasible.
        """
        tier, space = self.tier, self.space
        if self._is_measured and tier.budget.seconds:
            return tier.budget.seconds
        if self._is_measured:  # only a policy's own engine may have what the tier's lacks
            able = replace(tier.techniques, **factory.lacking(tier.engine, tier.techniques))
            space = replace(space, techniques=able)
        fastest_s = best(at_gbs_min(space), self.reference)[1]
        return tier.budget.iterations * fastest_s

    def belief(self, policy: Policy) -> TimeModel:
        """Return the time model that a policy plans with: its own, else the tier's."""
        name = getattr(policy, "belief", None) or self.tier.belief
        return time_model(name, self.model, self.cluster)

    def smallest_gbs(self, policy: Policy) -> int:
        """Return the first doubling of gbs_min that can run, in truth and as a policy believes.

        It is gbs_min itself where no doubling can.
        """
        space, first = self.space, self.tier.ladder.gbs_min
        judges = (self.reference, self.belief(policy))
        for i in range(math.ceil(math.log2(self.cluster.num_gpus)) + 1):
            strategies = space.at(first * 2**i)
            if all(any(j.why_not(s) is None for s in strategies) for j in judges):
                return first * 2**i
        return first

    def problem(self, policy: Policy) -> Problem:
        """Return what a policy may know. Raises ConfigError: no strategy of gbs_min is feasible."""
        return Problem(
            tier=self.tier,
            model=self.model,
            trained_model=self.trained_model,
            cluster=self.cluster,
            space=self.space,
            belief=self.belief(policy),
            switch_cost=self.switch_cost,
            time_budget_s=self.time_budget_s,
        )
