"""The table of performance profiles: how often a policy is within a factor of the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cona.analysis.groups import marked
from cona.analysis.load import Run
from cona.analysis.markdown import page, table
from cona.analysis.notes import notes, num_seeds
from cona.analysis.performance_profile import Profile, profiles

TAUS = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Factors of the columns."""
COLUMNS = ("policy", "kind", "tau", "share", "n_problems", "n_reached")
"""`share`: of problems (model, target, seed) on which TTP is at most tau times the fastest's."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every policy and factor."""
    return [
        {
            "policy": profile.policy,
            "kind": profile.kind,
            "tau": tau,
            "share": profile.share(tau),
            "n_problems": profile.num_problems,
            "n_reached": len(profile.ratios),
        }
        for profile in profiles(runs).profiles
        for tau in TAUS
    ]


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page, the policy that is most often the fastest first."""
    found = profiles(runs)
    own = (
        "Share of problems (model, target, seed) on which the policy's TTP is at most tau times "
        "that of the fastest method. A target that was not reached is never within tau.",
        "Targets: all rungs that take the fastest method at least 4 % of the budget; TTP "
        "interpolated between evaluations. Every seed and target is a problem of its own: no "
        "centre, no interval.",
        found.seeds.sentence(),
        "(bound): no method; it is compared with the fastest method, which it may beat.",
    )
    ranked = sorted(found.profiles, key=lambda p: [-p.share(tau) for tau in (1.25, *TAUS)])
    heads = ["policy", *(f"tau {tau:g}" for tau in TAUS), "reached"]
    body = table(heads, [_line(p) for p in ranked]) if ranked else "No target was reached."
    return page(f"# Performance profile, tier {tier}, {num_seeds(runs)}", notes(runs, *own), body)


def _line(profile: Profile) -> list[str]:
    shares = [f"{profile.share(tau):.0%}" for tau in TAUS]
    reached = f"{len(profile.ratios)}/{profile.num_problems}"
    return [marked(profile.policy, profile.kind), *shares, reached]
