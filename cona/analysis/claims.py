"""The paper's claims against the runs of a tier: what was found, and the verdict.

The rule stands in the comments of `config/claims.yaml` and in docs/claims.md. Source: method.md 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cona import registry
from cona.analysis.claim_measures import measure
from cona.analysis.claim_numbers import Measured
from cona.analysis.claim_specs import ClaimSpec, Measure, load_claims
from cona.analysis.groups import METHOD, ORACLE, fixed_gbs, is_oracle
from cona.analysis.load import Run
from cona.analysis.statistics import MIN_FOR_INTERVAL
from cona.specs import TierSpec

Verdict = Literal["reproduced", "same direction", "not reproduced", "not tested", "context"]
"""`context`: not judged at all."""

_TAKES: Mapping[Measure, Callable[[str, str], bool]] = {
    "reference_over_offline": lambda policy, kind: kind == "offline" or is_oracle(policy),
    "cona_over_offline": lambda policy, kind: kind == "offline" or policy == METHOD,
    "cona_over_hindsight": lambda policy, _: fixed_gbs(policy) is not None or policy == METHOD,
    "cona_over_planners": lambda policy, kind: kind == "offline" or policy == METHOD,
    "gap_to_best_known": lambda policy, _: (
        fixed_gbs(policy) is not None or is_oracle(policy) or policy == METHOD
    ),
    "changes": lambda policy, _: policy in (METHOD, ORACLE),
}
"""Which policies, with their kinds, a measure compares."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim for one model."""

    claim: ClaimSpec
    model: str
    measured: Measured
    """What was found; says so itself where there is nothing to compare."""
    runs: tuple[Run, ...]
    """The runs that it was found in."""
    why_not_tested: str | None
    """Why there is no verdict; None: there is one."""

    @property
    def verdict(self) -> Verdict:
        """The verdict by the rule of `config/claims.yaml`."""
        claim, found = self.claim, self.measured
        if claim.reproduced is None or claim.same_direction is None:
            return "context"
        if self.why_not_tested is not None:
            return "not tested"
        if found.strict is not None and claim.reproduced.keeps(found.strict):
            return "reproduced"
        if found.mild is not None and claim.same_direction.keeps(found.mild):
            return "same direction"
        return "not reproduced"


def findings(tier: TierSpec, runs: Sequence[Run]) -> list[Finding]:
    """Return every claim for every model of a tier.

    Args:
        tier: what should have been run, and whether it gives verdicts.
        runs: finished runs; those that the tier does not ask for are left out.
    """
    return [
        _finding(claim, tier, [r for r in runs if r.model == model], model)
        for claim in load_claims().claims
        for model in tier.models
    ]


def _finding(claim: ClaimSpec, tier: TierSpec, group: Sequence[Run], model: str) -> Finding:
    takes = _TAKES[claim.measure]
    policies = [p for p in tier.policies if takes(p, registry.policy(p).kind)]
    asked = {(policy, seed) for policy in policies for seed in tier.seeds_for(policy)}
    runs = tuple(r for r in group if (r.policy, r.seed) in asked)
    measured = measure(claim.measure, runs)
    return Finding(
        claim=claim,
        model=model,
        measured=measured,
        runs=runs,
        why_not_tested=_why_not_tested(tier, len(asked), len(runs), measured),
    )


def _why_not_tested(
    tier: TierSpec, num_asked: int, num_found: int, measured: Measured
) -> str | None:
    if not tier.gives_verdicts:
        return f"the tier {tier.name} gives no verdicts"
    if num_found < num_asked:
        return f"{num_asked - num_found} of {num_asked} runs are not finished"
    if measured.why_none:
        return measured.why_none
    if measured.num_pairs < MIN_FOR_INTERVAL:
        return f"n = {measured.num_pairs} common seeds, fewer than {MIN_FOR_INTERVAL}"
    return None
