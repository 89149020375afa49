"""The problem that an advisor's policy is given, from names and numbers.

Source: architecture.md, Contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cona import config, registry
from cona.cost import TimeModel, time_model
from cona.cost.table import TimeTable
from cona.errors import ConfigError
from cona.policy import Policy, ProbingPolicy
from cona.specs import ClusterSpec, EvaluationSpec, LadderSpec, ModelSpec, TierSpec
from cona.strategy import Strategy


def belief_of(
    policy: str,
    tier: TierSpec,
    model: ModelSpec,
    cluster: ClusterSpec,
    times_s: Mapping[Strategy, float],
) -> TimeModel:
    """Return what a policy believes about T: its own time model or the tier's, scaled to times.

    Args:
        policy: its name with parameters.
        tier: names the time model of policies without their own.
        model: the model that trains.
        cluster: where it trains.
        times_s: measured seconds per iteration by strategy; may be empty.
    """
    name = getattr(watching(policy), "belief", None) or tier.belief
    believed = time_model(name, model, cluster)
    return TimeTable("measured", times_s, believed) if times_s else believed


def largest_mbs(smallest_gbs: int) -> int:
    """Return the largest micro-batch that leaves every iteration two gradients, at most 32."""
    return max(1, min(32, smallest_gbs // 2))


def watching(name: str) -> Policy:
    """Return a policy that needs no more than it is shown. Raises ConfigError."""
    policy = registry.policy(name)
    if isinstance(policy, ProbingPolicy):
        raise ConfigError(
            f"policy '{name}' looks ahead by training, which an advisor cannot; nearest: cona"
        )
    return policy


def tier_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    policy: str,
    ladder: Mapping[str, int],
    settings: Mapping[str, Any],
) -> TierSpec:
    """Return the settings that policies ask for; an advisor evaluates nothing."""
    none = EvaluationSpec(interval_samples=ladder["gbs_max"], num_samples=1, probe_samples=1)
    tier = TierSpec(
        name="advisor",
        description="a training loop that is watched",
        models=(model.name,),
        policies=(policy,),
        cluster=cluster.name,
        ladder=config.validate(LadderSpec, dict(ladder), where="gbs"),
        evaluation=none,
        snapshot_interval_samples=ladder["gbs_max"],
    )
    return config.override(tier, dict(settings), where="settings")
