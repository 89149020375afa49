"""What `cona tables`, `claims` and `planners` print: the table that matters most, from its CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cona.analysis.groups import unique
from cona.analysis.markdown import number, ratio
from cona.analysis.speedup import HINDSIGHT
from cona.analysis.statistics import median_reached
from cona.analysis.ttp import label
from cona.cli.terminal import table

Row = dict[str, Any]


def rows_of(csv: Path) -> list[Row]:
    """Return the rows of a table as plain values; an empty cell is None."""
    import pandas as pd

    rows: list[Row] = json.loads(pd.read_csv(csv).to_json(orient="records", double_precision=15))
    return rows


# --- claims -------------------------------------------------------------------------------------

CLAIM_HEAD = ("claim", "model", "paper", "here", "target", "reached", "verdict")
CLAIM_DROP = ("target", "reached", "paper")
"""Columns that a narrow terminal does without, the least important first."""


def claims(rows: Sequence[Row]) -> str:
    """Return the claims as a table, then what each of them says and why some have no verdict."""
    said = unique(f"{row['claim']}  {row['statement']}" for row in rows)
    whys = unique(row["why_not_tested"] for row in rows if row["verdict"] == "not tested")
    blocks = [table(CLAIM_HEAD, map(_claim_cells, rows), drop=CLAIM_DROP), "\n".join(said)]
    return "\n\n".join([*blocks, *([f"Not tested: {'; '.join(whys)}."] if whys else [])])


def _claim_cells(row: Row) -> tuple[str, ...]:
    target, of = row["target"], row["n_seeds"]
    return (
        row["claim"],
        row["model"],
        row["paper"],
        row["brief"] or "-",
        "-" if target is None else label(target),
        "-" if target is None else f"{row['n_reached']}/{of}",
        row["verdict"],
    )


# --- times to perplexity ------------------------------------------------------------------------

TTP_HEAD = ("policy", "kind", "TTP s", "reached", "over best fixed")
TTP_DROP = ("kind",)
TTP_NOTE = (
    f"-: no such time. over best fixed: speed-up over the {HINDSIGHT}, whose own is 1; "
    "≥: that one did not reach the target."
)


def ttp_rows(ttp: Sequence[Row], speedup: Sequence[Row]) -> list[Row]:
    """Return a row for each model and policy: its time to the headline target, and its speed-up.

    Args:
        ttp: rows of ttp.csv.
        speedup: rows of speedup.csv.
    """
    over = {
        (row["model"], row["method"]): row
        for row in speedup
        if row["headline"] == "yes" and row["baseline"] == HINDSIGHT
    }
    headline = [row for row in ttp if row["headline"] == "yes"]
    pairs = unique((row["model"], row["policy"]) for row in headline)
    return [
        _ttp_row(
            [row for row in headline if (row["model"], row["policy"]) == pair],
            over.get(pair, {}),
        )
        for pair in pairs
    ]


def _ttp_row(seeds: Sequence[Row], over: Row) -> Row:
    times, first = [row["ttp_train_s"] for row in seeds], seeds[0]
    return {
        **{key: first[key] for key in ("model", "metric", "target", "policy", "kind", "clock")},
        "ttp_s": median_reached(times),
        "n": len(times),
        "n_reached": sum(time is not None for time in times),
        "speedup": over.get("speedup_median"),
        "speedup_is_at_least": over.get("state") == "at_least",
    }


def ttp(rows: Sequence[Row], models: Sequence[str]) -> str:
    """Return for each model the time that every policy takes to the headline target.

    Args:
        rows: of `ttp_rows`.
        models: all models; one may have no headline target.
    """
    blocks = []
    for model in models:
        own = [row for row in rows if row["model"] == model]
        if not own:
            blocks.append(f"{model}: no target was reached by the best fixed strategy at each seed")
            continue
        first = own[0]
        blocks += [
            f"{model}: {first['clock']} seconds to {first['metric']} {label(first['target'])}, the "
            "headline target; median over seeds",
            table(TTP_HEAD, map(_ttp_cells, own), drop=TTP_DROP),
        ]
    return "\n\n".join([*blocks, TTP_NOTE])


def _ttp_cells(row: Row) -> tuple[str, ...]:
    seconds, speedup = row["ttp_s"], row["speedup"]
    bound = "≥ " if row["speedup_is_at_least"] else ""
    return (
        row["policy"],
        row["kind"],
        "-" if seconds is None else number(seconds),
        f"{row['n_reached']}/{row['n']}",
        "-" if speedup is None else f"{bound}{ratio(speedup)}",
    )


# --- planners -----------------------------------------------------------------------------------


def planners(rows: Sequence[Row]) -> str:
    """Return for each model how much longer than the best each pick takes, by batch size."""
    blocks = []
    for model in unique(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        sizes = unique(row["gbs"] for row in own)
        cells = {(row["planner"], row["gbs"]): _over(row) for row in own}
        names = unique(row["planner"] for row in own)
        lines = [(name, *(cells[name, gbs] for gbs in sizes)) for name in names]
        blocks += [
            f"{model}, priced as {own[0]['priced_as']} on {own[0]['cluster']}: how many % longer "
            f"the pick takes than the best strategy, modelled by {own[0]['time_source']}",
            table(("planner", *(f"gbs {gbs}" for gbs in sizes)), lines),
        ]
    return "\n\n".join([*blocks, "-: no plan, or one that is no uniform strategy which can run."])


def _over(row: Row) -> str:
    return "-" if row["over_best"] is None else f"{100 * row['over_best']:.1f}"
