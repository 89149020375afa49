"""The table of times to perplexity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from cona.analysis.groups import by_model, by_policy
from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, number, page, table, yes
from cona.analysis.notes import HEADLINE, notes, num_seeds
from cona.analysis.statistics import median_reached
from cona.analysis.ttp import (
    Crossing,
    Ttp,
    headline_target,
    label,
    ttp_rows,
)
from cona.cost.switch import PRESETS

COLUMNS = (
    *("model", "policy", "kind", "seed", "metric", "target", "headline", "reached"),
    *("ttp_train_s", "ttp_interpolated_s", *(f"ttp_recharged_{p}_s" for p in PRESETS)),
    "ttp_wall_s",
    *("time_budget_s", "clock", "time_source", "switch_cost", "belief", "n"),
)
"""`ttp_recharged_<preset>_s`: the same decisions with switches charged by that preset;
`ttp_wall_s`: with modelled evaluation time."""
NUM_SHOWN = 6
"""Hardest targets that the Markdown tables show beside the headline target."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every run and target; times are None where not reached."""
    found = []
    for group in by_model(runs).values():
        rows, counts = ttp_rows(group), {p: len(g) for p, g in by_policy(group).items()}
        headline = headline_target(rows)
        found += [
            {**_record(row), "headline": yes(row.target == headline), "n": counts[row.run.policy]}
            for row in rows
        ]
    return found


def _record(row: Ttp) -> dict[str, Any]:
    run, at = row.run, row.crossing
    return {
        "model": run.model,
        "policy": run.policy,
        "kind": run.kind,
        "seed": run.seed,
        "metric": run.metric,
        "target": row.target,
        "reached": yes(at is not None),
        "ttp_train_s": at and at.train_s,
        "ttp_interpolated_s": at and at.interpolated_s,
        **{f"ttp_recharged_{p}_s": at and at.recharged_s.get(p) for p in PRESETS},
        "ttp_wall_s": at and at.wall_s,
        "time_budget_s": run.budget_s,
        "clock": run.clock["kind"],
        "time_source": run.clock["time_source"],
        "switch_cost": run.clock["switch_cost"],
        "belief": run.result["belief"],
    }


def shown_targets(rows: Sequence[Ttp]) -> list[float]:
    """Return the headline target and the hardest ones of a model, easy to hard."""
    hardest = sorted({r.target for r in rows}, reverse=True)[-NUM_SHOWN:]
    headline = headline_target(rows)
    return sorted({*hardest, *([headline] if headline else [])}, reverse=True)


def columns_sentence(file: str) -> str:
    """Return which targets have a column, and the CSV file that holds all of them."""
    return (
        f"Columns, easy to hard: the headline target and the {NUM_SHOWN} hardest; all rungs are in "
        f"`{file}`."
    )


def left_out(rows: Sequence[Ttp]) -> str:
    """Return a sentence if rungs between two shown targets have no column, else nothing."""
    gaps = [
        f"{label(easy)} and {label(hard)}"
        for easy, hard in pairwise(shown_targets(rows))
        if any(hard < r.target < easy for r in rows)
    ]
    return f"Rungs without a column: between {', '.join(gaps)}." if gaps else ""


def headers(rows: Sequence[Ttp]) -> list[str]:
    """Return the shown targets as column heads, the headline target in bold."""
    headline = headline_target(rows)
    return [f"**{label(t)}**" if t == headline else label(t) for t in shown_targets(rows)]


def cell(rows: Sequence[Ttp], of: str = "train") -> str:
    """Return the median TTP over the seeds of one policy and target, or that it is not reached.

    Args:
        rows: one for each seed.
        of: ``train``, ``interpolated`` or a switch-cost preset.
    """
    times = [_seconds(r.crossing, of) if r.crossing else None for r in rows]
    count = sum(t is not None for t in times)
    centre = median_reached(times)
    text = NOT_REACHED if centre is None else number(centre)
    return text if len(rows) == 1 or count == len(rows) else f"{text} ({count}/{len(rows)})"


def _seconds(at: Crossing, of: str) -> float:
    named = {"train": at.train_s, "interpolated": at.interpolated_s}
    return named[of] if of in named else at.recharged_s[of]


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page of TTP tables, one section for each model."""
    own = (
        "TTP: the train clock at the first evaluation at or below the target. Targets are the "
        "rungs 10^(k/20), fixed before any result.",
        f"{columns_sentence('ttp.csv')} {HEADLINE}",
        "Cells: median over seeds in seconds, an unreached seed counting as slowest; (k/N): "
        "reached by k of N seeds; no interval.",
    )
    sections = [b for group in by_model(runs).values() for b in _section(group)]
    title = f"# Time to perplexity in {_unit(runs)}, tier {tier}, {num_seeds(runs)}"
    return page(title, notes(runs, *own), *sections)


def _unit(runs: Sequence[Run]) -> str:
    return f"{runs[0].clock['kind']} seconds"


def _section(group: Sequence[Run]) -> Iterator[str]:
    rows, run = ttp_rows(group), group[0]
    yield f"## {run.model} ({run.metric}), budget {number(run.budget_s)} s"
    if not rows:
        yield "No run improved its perplexity by one rung."
        return
    cells = {
        policy: [cell(_at(rows, policy, t)) for t in shown_targets(rows)]
        for policy in by_policy(group)
    }
    yield table(["policy", *headers(rows)], [[p, *texts] for p, texts in cells.items()])
    yield left_out(rows)
    yield from _presets(rows, list(cells))


def _presets(rows: Sequence[Ttp], policies: Sequence[str]) -> Iterator[str]:
    headline = headline_target(rows)
    if headline is None:
        yield "The best fixed strategy reached no target at every seed: no headline target."
        return
    presets = PRESETS if rows[0].run.clock["kind"] == "modelled" else ()
    kinds = ("train", "interpolated", *presets)
    columns = ["as charged", "interpolated between evaluations"]
    if presets:
        columns.append("and the same decisions with switches re-charged by each preset")
    yield f"At the headline target {label(headline)}: {', '.join(columns)}."
    yield table(
        ["policy", "TTP", "interpolated", *(f"re-charged: {p}" for p in presets)],
        [[p, *(cell(_at(rows, p, headline), of) for of in kinds)] for p in policies],
    )


def _at(rows: Sequence[Ttp], policy: str, target: float) -> list[Ttp]:
    return [r for r in rows if r.run.policy == policy and r.target == target]
