"""What `cona whatif` prints: a table for each model, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from cona.cli.terminal import json_text, table
from cona.replay.whatif import Outcome, Recorded, Size

HEAD = (
    "GPUs",
    "gbs",
    "chain s",
    "fixed s",
    "at gbs",
    "ratio",
    "pays",
    "switches",
    "last gbs",
    "recorded s",
)
DROP = ("recorded s", "at gbs", "gbs")
"""Columns that a narrow terminal does without, the least important first."""
PAYS = {True: "yes", False: "no", None: "open"}
Sizes = Mapping[str, Sequence[Size]]
Known = Mapping[str, Sequence[Recorded]]


def as_text(found: Sizes, known: Known, policy: str) -> str:
    """Return a table and the chains of the first seed for every model.

    Args:
        found: the sizes of every model.
        known: the recorded runs of every model.
        policy: what chained.
    """
    blocks = []
    for model, sizes in found.items():
        rows = [_cells(size) for size in sizes]
        whens = [_when(size) for size in sizes]
        whys = [f"{s.cluster.num_gpus} GPUs: {s.why_none}" for s in sizes if s.why_none]
        blocks += [_title(known[model], sizes[0], policy), table(HEAD, rows, drop=DROP)]
        blocks += ["\n".join([WHEN, *filter(None, whens)])]
        blocks += ["\n".join(["Cannot run:", *whys])] if whys else []
    return "\n\n".join([*blocks, NOTE])


WHEN = "Chain of the first seed: gbs, when in % of its time, * with another layout:"
NOTE = (
    "All seconds are modelled, to the progress of the recorded run in noiseless steps.\n"
    "fixed s: the best fixed strategy, in hindsight. ratio: fixed over chain, median (range).\n"
    "recorded s: the recorded batch sizes, re-timed; - where the GPUs cannot run them."
)


def _title(runs: Sequence[Recorded], size: Size, policy: str) -> str:
    tier, name = runs[0].tier, size.cluster.name.partition("@")[0]
    seeds = ", ".join(str(run.seed) for run in runs)
    return (
        f"{policy} for {runs[0].model} on {name} ({size.cluster.gpu}); noise of {runs[0].policy}, "
        f"tier {tier.name}, seed {seeds};\nseconds are modelled by {tier.clock.time_source}, "
        f"switches charged as {tier.clock.switch_cost}"
    )


def _cells(size: Size) -> tuple[str, ...]:
    gpus, outcomes = f"{size.cluster.num_gpus:,}", size.outcomes
    if not outcomes:
        return (gpus, "none", *["-"] * (len(HEAD) - 2))
    rungs = outcomes[0].rungs
    return (
        gpus,
        f"{rungs[0]}..{rungs[-1]}",
        _median([o.chain_s for o in outcomes]),
        _median([o.best_fixed.seconds for o in outcomes]),
        _range([o.best_fixed.strategy.gbs for o in outcomes]),
        _ratio([o.ratio for o in outcomes]),
        PAYS[size.pays],
        _range([len(o.switches) for o in outcomes]),
        _range([o.chain[-1].strategy.gbs for o in outcomes]),
        _median([o.recorded_s for o in outcomes]),
    )


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.4g}" if len(known) == len(values) else "-"


def _ratio(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"reached {len(known)}/{len(values)}"
    middle = f"{median(known):.3f}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.2f}-{max(known):.2f})"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _when(size: Size) -> str:
    if not size.outcomes:
        return ""
    chain, end_s = size.outcomes[0].chain, size.outcomes[0].chain_s
    steps = [str(chain[0].strategy.gbs)]
    for before, stage in pairwise(chain):
        mark = "" if before.strategy.layout == stage.strategy.layout else "*"
        when = f" at {stage.train_s / end_s:.0%}" if end_s else ""
        steps.append(f"{stage.strategy.gbs}{mark}{when}")
    return f"{size.cluster.num_gpus:>7,} GPUs: {', '.join(steps)}"


def as_json(found: Sizes, known: Known, policy: str) -> str:
    """Return everything as JSON; times in seconds, batch sizes and noise scales in samples."""
    models = [
        {
            "model": model,
            "recorded_policy": known[model][0].policy,
            "tier": known[model][0].tier.name,
            "time_source": known[model][0].tier.clock.time_source,
            "switch_cost": known[model][0].tier.clock.switch_cost,
            "sizes": [_size_fields(size) for size in sizes],
        }
        for model, sizes in found.items()
    ]
    content = {"policy": policy, "clock": "modelled", "models": models}
    return json_text(content)


def _size_fields(size: Size) -> dict[str, Any]:
    return {
        "cluster": size.cluster.name,
        "num_gpus": size.cluster.num_gpus,
        "unusable_gbs": list(size.unusable),
        "why_none": size.why_none,
        "pays": size.pays,
        "seeds": [_outcome_fields(outcome) for outcome in size.outcomes],
    }


def _outcome_fields(outcome: Outcome) -> dict[str, Any]:
    best = outcome.best_fixed
    return {
        "seed": outcome.seed,
        "rungs": list(outcome.rungs),
        "progress_noiseless_steps": outcome.end_steps,
        "chain_s": outcome.chain_s,
        "best_fixed": {"strategy": str(best.strategy), "gbs": best.strategy.gbs},
        "best_fixed_s": best.seconds,
        "fixed_s": {str(one.strategy.gbs): one.seconds for one in outcome.fixed},
        "ratio": outcome.ratio,
        "num_switches": len(outcome.switches),
        "last_gbs": outcome.chain[-1].strategy.gbs,
        "recorded_s": outcome.recorded_s,
        "chain": [
            {
                "strategy": str(stage.strategy),
                "gbs": stage.strategy.gbs,
                "train_s": stage.train_s,
                "samples": stage.samples,
                "switch_s": stage.switch_s,
                "gns": stage.gns,
                "reason": stage.reason,
            }
            for stage in outcome.chain
        ],
    }
