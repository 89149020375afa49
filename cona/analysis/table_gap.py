"""The table of gaps to the oracles and to the best that is known."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from cona.analysis.gap import BEST, OracleGap, oracle_gaps
from cona.analysis.groups import by_policy, unique
from cona.analysis.load import Run
from cona.analysis.markdown import number, page, percent, table
from cona.analysis.notes import notes, num_seeds
from cona.analysis.panels import MOST_LINES

COLUMNS = (
    *("model", "policy", "reference", "seed", "metric", "state", "max_gap", "mean_gap"),
    *("start_s", "end_s", "status", "clock", "time_source"),
)
"""Gaps are fractions, ppl/ppl_reference - 1; `reference`: an oracle, or the best known at every
moment; `state` no_overlap: the curves share no time."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every run against every reference of its model and seed."""
    return [_record(g) for g in oracle_gaps(runs)]


def _record(found: OracleGap) -> dict[str, Any]:
    run, gap = found.run, found.gap
    return {
        "model": run.model,
        "policy": run.policy,
        "reference": found.reference,
        "seed": run.seed,
        "metric": run.metric,
        "state": "gap" if gap else "no_overlap",
        "max_gap": gap and gap.largest,
        "mean_gap": gap and gap.mean,
        "start_s": gap and gap.start_s,
        "end_s": gap and gap.end_s,
        "status": run.result["status"],
        "clock": run.clock["kind"],
        "time_source": run.clock["time_source"],
    }


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page of oracle gaps."""
    gaps = oracle_gaps(runs)
    own = (
        "Gap = ppl/ppl_reference - 1 at equal train clock, log perplexity linear between "
        "evaluations, from the later first evaluation after the warm-up to the earliest last one.",
        "An oracle is not a bound: it looks a few intervals ahead, so a gap to it can be negative.",
        f"`{BEST}`: at every moment the lowest of all oracles and all fixed-best runs (diverged "
        "ones left out), the best of which only hindsight knows. This is the reference of the "
        "paper's claim C3.",
        "Cells: median over seeds; no interval.",
        f"With more than {MOST_LINES} policies only the gap to `{BEST}` has rows; "
        "`oracle_gap.csv` has all.",
    )
    is_many = len(by_policy(runs)) > MOST_LINES
    keys = unique(_key(g) for g in gaps if g.reference == BEST or not is_many)
    rows = [[*key, *_cells([g for g in gaps if _key(g) == key])] for key in keys]
    headers = ["model", "policy", "reference", "max gap", "mean gap", "from s", "to s"]
    body = table(headers, rows) if rows else "No oracle among the finished runs."
    return page(f"# Gap to the oracle, tier {tier}, {num_seeds(runs)}", notes(runs, *own), body)


def _key(found: OracleGap) -> tuple[str, str, str]:
    return found.run.model, found.run.policy, found.reference


def _cells(found: Sequence[OracleGap]) -> list[str]:
    gaps = [g.gap for g in found if g.gap]
    if not gaps:
        return ["no overlap", "no overlap", "–", "–"]
    return [
        percent(median(g.largest for g in gaps)),
        percent(median(g.mean for g in gaps)),
        number(median(g.start_s for g in gaps)),
        number(median(g.end_s for g in gaps)),
    ]
