"""The steps from a planner's pick to `cona`, each a TTP at one model's headline target.

Source: method.md 7, Attribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cona.analysis.attribution import Attribution, Retimed
from cona.analysis.groups import METHOD, fixed_gbs, unique
from cona.analysis.statistics import geometric_mean


@dataclass(frozen=True, kw_only=True)
class Level:
    """One TTP of the waterfall."""

    label: str
    seconds: float | None
    """Geometric mean over seeds; None: a seed did not reach the target, or has no price."""
    is_step: bool
    """A step of the chain (True), or a rival, ablation or bound beside it."""
    why_none: str = "not reached"
    """Why there are no seconds, in two words."""


def levels(ones: Sequence[Attribution]) -> list[Level]:
    """Return the chain, then every other policy that is no fixed strategy.

    Args:
        ones: all runs of one model at one target.

    Returns:
        The steps in order: the median planner's pick, the best layout at its batch size, the best
        fixed strategy in hindsight, cona's batch sizes at that layout, cona; then the rest, by
        policy. Empty without a cona run.
    """
    ours = [one for one in ones if one.row.run.policy == METHOD]
    if not ours:
        return []
    return [
        *_planner_steps(_of(ones, median_planner(ones))),
        _level("best fixed in hindsight", [o.static.train_s if o.static else None for o in ours]),
        _retimed_level("cona's batch sizes there", [one.at_static for one in ours]),
        _level(METHOD, [one.row.train_s for one in ours]),
        *_others(ones),
    ]


def median_planner(ones: Sequence[Attribution]) -> str | None:
    """Return the offline policy with the median TTP, unreached ones slowest.

    Of an even number the slower of the middle two. The `fixed-best` runs count only where there
    is no other planner; None without any.
    """
    offline = [one for one in ones if one.row.run.kind == "offline"]
    planners = [one for one in offline if fixed_gbs(one.row.run.policy) is None] or offline
    policies = unique(one.row.run.policy for one in planners)
    ranked = sorted(policies, key=lambda policy: _or_inf(_mean_ttp(_of(planners, policy))))
    return ranked[len(ranked) // 2] if ranked else None


def _planner_steps(picked: Sequence[Attribution]) -> list[Level]:
    if not picked:
        return []
    own = [one.at_own_gbs for one in picked if one.at_own_gbs]
    return [
        _level(f"pick of {picked[0].row.run.policy}", [one.row.train_s for one in picked]),
        _retimed_level("best layout at its gbs", own),
    ]


def _others(ones: Sequence[Attribution]) -> list[Level]:
    rest = unique(
        one.row.run.policy
        for one in ones
        if one.row.run.kind != "offline" and one.row.run.policy != METHOD
    )
    found = (_level(p, [o.row.train_s for o in _of(ones, p)], is_step=False) for p in rest)
    return list(found)


def _level(label: str, seconds: Sequence[float | None], *, is_step: bool = True) -> Level:
    return Level(label=label, seconds=_mean(seconds), is_step=is_step)


def _retimed_level(label: str, found: Sequence[Retimed]) -> Level:
    unpriced = any(one.why_none for one in found)
    level = _level(label, [one.seconds for one in found])
    return replace(level, why_none="no price") if unpriced else level


def _mean(seconds: Sequence[float | None]) -> float | None:
    known = [s for s in seconds if s is not None]
    return geometric_mean(known) if known and len(known) == len(seconds) else None


def _mean_ttp(ones: Sequence[Attribution]) -> float | None:
    return _mean([one.row.train_s for one in ones])


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _of(ones: Sequence[Attribution], policy: str | None) -> list[Attribution]:
    return [one for one in ones if one.row.run.policy == policy]
