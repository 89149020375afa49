"""The claims table of a tier: the paper's claims, what was found, and the verdict.

Source: method.md 8; the rule is in `config/claims.yaml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cona.analysis.claim_numbers import target_text
from cona.analysis.claims import Finding, findings
from cona.analysis.groups import by_model, by_policy
from cona.analysis.load import Run, asked_as, load_runs
from cona.analysis.markdown import number, page, table
from cona.analysis.notes import INTERVAL, notes, num_seeds
from cona.runlog import write_atomic
from cona.specs import TierSpec

COLUMNS = (
    *("claim", "statement", "paper", "model", "ours", "brief", "verdict", "why_not_tested"),
    *("strict", "reproduced_if", "mild", "same_direction_if"),
    *("metric", "target", "n_seeds", "n_reached", "n_common"),
    *("clock", "time_source", "cluster", "priced_as", "command", "run_keys"),
)
"""`strict` and `mild`: the numbers that the limits beside them are for; `n_common`: seeds of the
comparison that has the fewest; `run_keys`: of the runs that the claim was found in."""


def write_claims(results: Path, tier: TierSpec) -> list[Path]:
    """Write the claims table of a tier under ``results/<tier>/tables/``, as CSV and Markdown.

    Args:
        results: root of the results.
        tier: which runs count, and whether it gives verdicts.

    Returns:
        The files written.

    Raises:
        RunError: there is no finished run, or the runs cannot be compared.
        ConfigError: `config/claims.yaml` breaks a rule.
    """
    runs = load_runs(results, tier.name)
    found = findings(tier, runs)
    folder = results / tier.name / "tables"
    csv, text = folder / "claims.csv", folder / "claims.md"
    rows = [_record(finding, tier) for finding in found]
    write_atomic(csv, pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False))
    write_atomic(text, markdown(tier, runs, found))
    return [csv, text]


def command(tier: TierSpec) -> str:
    """Return the command that makes the runs and this table: ``make reproduce TIER=paper@tiny``."""
    return f"make reproduce TIER={asked_as(tier.name) or tier.name}"


def _record(found: Finding, tier: TierSpec) -> dict[str, Any]:
    claim, measured = found.claim, found.measured
    return {
        "claim": claim.name,
        "statement": claim.statement,
        "paper": claim.paper,
        "model": found.model,
        "ours": measured.ours,
        "brief": measured.brief,
        "verdict": found.verdict,
        "why_not_tested": found.why_not_tested,
        "strict": measured.strict,
        "reproduced_if": claim.reproduced and str(claim.reproduced),
        "mild": measured.mild,
        "same_direction_if": claim.same_direction and str(claim.same_direction),
        "target": measured.target,
        "n_seeds": measured.num_seeds,
        "n_reached": measured.num_reached,
        "n_common": measured.num_pairs,
        "command": command(tier),
        "run_keys": " ".join(str(run.result["run_key"]) for run in found.runs),
        **_scale(found.runs),
    }


def _scale(runs: Sequence[Run]) -> dict[str, Any]:
    """What a second is, and whose; empty without any run."""
    if not runs:
        return {}
    keys = ("time_source", "cluster", "priced_as")
    clock = runs[0].clock
    return {
        "metric": runs[0].metric,
        "clock": clock["kind"],
        **{k: clock.get(k) for k in keys},
    }


def markdown(tier: TierSpec, runs: Sequence[Run], found: Sequence[Finding]) -> str:
    """Return the page: the claims, why some have no verdict, the rule, and the runs."""
    own = (
        f"Made by `{command(tier)}`. The rule was written before the results: the comments of "
        "`config/claims.yaml`, and docs/claims.md.",
        "Ours: median over seeds [95 % t interval], from the lowest to the highest of all offline "
        "policies; `≥`: the slower side never reached the target, its budget stands for its TTP. "
        "Reached: seeds at which the faster side reached it. Its hardest rung that the best fixed "
        "strategy reached at every seed is the target.",
        "C1: the reference is, at every seed, the fastest of its oracles and fixed-best runs; an "
        "offline method that is the reference itself has the ratio 1.",
        INTERVAL,
    )
    return page(
        f"# Claims, tier {tier.name}, {num_seeds(runs)}",
        notes(runs, *own),
        table(
            ["claim", "model", "clock, scale", "paper", "ours", "target", "reached", "verdict"],
            [_line(finding) for finding in found],
        ),
        "## Why not tested",
        _reasons(found),
        "## The rule",
        _rules(found),
        "## Run keys, by policy and seed",
        _keys(runs),
    )


def _line(found: Finding) -> list[str]:
    measured, claim = found.measured, found.claim
    reached = f"n = {measured.num_seeds}"
    if measured.target is not None:
        reached = f"{measured.num_reached}/{measured.num_seeds}"
    named = f"**{claim.name}** {claim.statement}"
    cells = [measured.ours, target_text(measured) or "–", reached, found.verdict]
    return [named, found.model, _scale_text(found.runs), claim.paper, *cells]


def _scale_text(runs: Sequence[Run]) -> str:
    scale = _scale(runs)
    if not scale:
        return "–"
    return f"{scale['clock']}, as {scale['priced_as']} on {scale['cluster']}"


def _reasons(found: Sequence[Finding]) -> str:
    untested: dict[str, list[str]] = {}
    for one in found:
        if one.verdict == "not tested":
            untested.setdefault(str(one.why_not_tested), []).append(f"{one.claim.name} {one.model}")
    lines = [f"- {why}: {', '.join(names)}" for why, names in untested.items()]
    return "\n".join(lines) or "Every claim has a verdict."


def _rules(found: Sequence[Finding]) -> str:
    rows = [
        [
            one.claim.name,
            one.model,
            *(number(value) for value in (one.measured.strict, one.measured.mild)),
            *(str(limit) for limit in (one.claim.reproduced, one.claim.same_direction)),
        ]
        for one in found
        if one.verdict != "context"
    ]
    heads = [
        "claim",
        "model",
        "strict",
        "mild",
        "reproduced if strict is",
        "same direction if mild is",
    ]
    return table(heads, rows)


def _keys(runs: Sequence[Run]) -> str:
    return "\n".join(
        f"- {model}, `{policy}`: "
        + ", ".join(f"{run.seed}: `{run.result['run_key']}`" for run in seeds)
        for model, group in by_model(runs).items()
        for policy, seeds in by_policy(group).items()
    )
