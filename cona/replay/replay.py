"""The chain of strategies that a policy would take on a recorded trace, on any cluster.

Nothing is trained, so there is no perplexity. Source: issue 5 (`cona replay`); method.md 3 and 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cona import config
from cona.errors import ConfigError
from cona.policy import Policy
from cona.replay.trace import Trace
from cona.replay.walk import Replay, ReplayStage, Walk, seeing_policy
from cona.scene import Scene
from cona.specs import TierSpec

__all__ = ["Replay", "ReplayRequest", "ReplayStage", "replay"]

MOST_ITERATIONS = 1_000_000
"""Longest budget that a long trace gets by itself: minutes of replaying."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What is replayed: one policy for one model, under the settings of a tier."""

    tier: TierSpec
    """Cluster, ladder, budget, clock and belief."""
    model: str
    """Name of a model specification; a proxy is priced as its full-size model."""
    policy: str
    """Policy with its parameters, e.g. cona-paper."""
    covers_trace: bool = False
    """Lengthen the budget where it ends before the trace."""


def replay(request: ReplayRequest, trace: Trace) -> Replay:
    """Return the stages that a policy goes through on a trace until its time budget is used.

    A budget that was lengthened to the trace is not used beyond the trace's end.

    Args:
        request: policy, model and settings.
        trace: the gradient noise; its ends are held.

    Raises:
        ConfigError: a name or value breaks a rule, or the policy has to look ahead.
        RunError: the policy chose a strategy that cannot run.
    """
    scene = Scene.of(request.tier, request.model)
    scene, notes = fit_ladder(scene, seeing_policy(request.policy))
    done = Walk(scene, request.policy, trace).finish()
    end = trace.last_samples
    if request.covers_trace and done.samples < end:
        tier, note = _longer(scene.tier, end)
        done = Walk(scene.under(tier), request.policy, trace, until=end).finish()
        notes.append(note)
    elif done.samples > end:
        notes.append(
            f"the trace ends after {end:,.0f} of {done.samples:,} samples, "
            f"{100 * end / done.samples:.3g} %: what comes after sees its last noise scale"
        )
    return replace(done, notes=tuple(notes))


def _longer(tier: TierSpec, last_samples: float) -> tuple[TierSpec, str]:
    """Return the tier with the iterations that the smallest batch needs for a trace."""
    needed = math.ceil(last_samples / tier.ladder.gbs_min)
    if needed > MOST_ITERATIONS:
        raise ConfigError(
            f"the trace ends after {last_samples:,.0f} samples, {needed:,} iterations at gbs "
            f"{tier.ladder.gbs_min}, more than {MOST_ITERATIONS:,}: set budget.iterations"
        )
    sentence = (
        f"the budget is {needed:,} iterations at gbs {tier.ladder.gbs_min}, as long as the trace; "
        f"the tier's {tier.budget.iterations:,} end before it"
    )
    return config.override(tier, {"budget.iterations": needed}), sentence


def fit_ladder(scene: Scene, policy: Policy) -> tuple[Scene, list[str]]:
    """Return the scene with its ladder shifted up to where the cluster's GPUs have a strategy.

    Args:
        scene: model, cluster and settings.
        policy: it has to believe that the strategy can run.

    Returns:
        The scene, the same where the ladder fits, and a sentence if it does not.
    """
    tier, smallest = scene.tier, scene.smallest_gbs(policy)
    if smallest == tier.ladder.gbs_min:
        return scene, []
    factor = smallest // tier.ladder.gbs_min
    largest = tier.ladder.gbs_max * factor
    changes = {
        "ladder.gbs_min": smallest,
        "ladder.gbs_max": largest,
        "evaluation.interval_samples": tier.evaluation.interval_samples * factor,
    }
    note = (
        f"the ladder is gbs {smallest} to {largest}, not {tier.ladder.gbs_min} to "
        f"{tier.ladder.gbs_max}: below, no strategy of {scene.cluster.num_gpus:,} GPUs is feasible"
    )
    return scene.under(config.override(tier, changes)), [note]
