"""Performance profile of policies over models and targets (Dolan and Moré 2002).

A problem is a model, a target and a seed. A policy's ratio is its TTP over that of the fastest
method; the profile is the share of problems with a ratio of at most tau. Not reached: no ratio, at
any tau. Bounds, which are no methods, are compared with the fastest method too.

Source: issue 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cona.analysis.groups import BOUND
from cona.analysis.load import Run
from cona.analysis.panels import SHOWN_FROM
from cona.analysis.seeds import CommonSeeds, common_seeds
from cona.analysis.ttp import Ttp, interpolated_rows, ttp_rows

Problem = tuple[str, float, int]
"""Model, target, seed."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One policy's profile."""

    policy: str
    kind: str
    ratios: tuple[float, ...]
    """TTP over that of the fastest method, where reached, ascending."""
    num_problems: int
    """Models times targets times seeds; those without a ratio were not reached."""

    def share(self, tau: float) -> float:
        """Return the share of problems on which the policy is within a factor of the fastest."""
        return sum(r <= tau for r in self.ratios) / self.num_problems


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """The profiles of all policies that share their seeds."""

    profiles: tuple[Profile, ...]
    """In the order of every table."""
    seeds: CommonSeeds
    """The seeds that count; other policies are left out."""


def profiles(runs: Sequence[Run]) -> Profiles:
    """Return the profile of every policy, at the targets that take 4 % of the budget to reach.

    Args:
        runs: of any number of models. Where policies have different seeds, those of most policies
            count; a policy that lacks one of them is left out, further seeds are too.
    """
    seeds = common_seeds(runs)
    rows = interpolated_rows(ttp_rows([run for run in runs if seeds.has(run)]))
    fastest = _fastest(rows)
    found = [_profile(policy, of, fastest) for policy, of in _by_policy(rows).items()]
    return Profiles(profiles=tuple(found) if fastest else (), seeds=seeds)


def _fastest(rows: Sequence[Ttp]) -> dict[Problem, float]:
    """Return the TTP of the fastest method, in seconds, of every problem that is not too early."""
    fastest: dict[Problem, float] = {}
    for row in rows:
        if row.run.kind != BOUND and row.train_s is not None:
            fastest[_problem(row)] = min(fastest.get(_problem(row), math.inf), row.train_s)
    budgets = {row.run.model: row.run.budget_s for row in rows}
    return {p: s for p, s in fastest.items() if s >= SHOWN_FROM * budgets[p[0]]}


def _profile(policy: str, rows: Sequence[Ttp], fastest: dict[Problem, float]) -> Profile:
    ratios = [
        row.train_s / fastest[_problem(row)]
        for row in rows
        if row.train_s is not None and _problem(row) in fastest
    ]
    return Profile(
        policy=policy,
        kind=rows[0].run.kind,
        ratios=tuple(sorted(ratios)),
        num_problems=max(len(fastest), 1),
    )


def _by_policy(rows: Sequence[Ttp]) -> dict[str, list[Ttp]]:
    found: dict[str, list[Ttp]] = {}
    for row in rows:
        found.setdefault(row.run.policy, []).append(row)
    return found


def _problem(row: Ttp) -> Problem:
    return row.run.model, row.target, row.run.seed
