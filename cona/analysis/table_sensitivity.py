"""The table of sensitivity: the speed-up of `cona` under other gradient noise scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cona.analysis.groups import METHOD, fixed_gbs, unique
from cona.analysis.load import Run
from cona.analysis.markdown import number, page, ratio, table
from cona.analysis.notes import INTERVAL, notes, num_seeds
from cona.analysis.sensitivity import (
    BUDGETS,
    FACTORS,
    Modelled,
    Sensitivity,
    believed_factor,
)
from cona.analysis.speedup import HINDSIGHT, Speedup
from cona.analysis.table_speedup import cell
from cona.analysis.ttp import label

COLUMNS = (
    *("model", "question", "factor", "policy", "baseline", "target", "state", "speedup_median"),
    *("speedup_low", "speedup_high", "n", "cona_s", "baseline_s", "num_switches", "best_gbs"),
    *("clock", "time_source", "run_key"),
)
"""`question`: believed (real runs whose controller misjudges the GNS by the factor) or modelled
(the recorded GNS times the factor, replayed; nothing is trained)."""


def records(found: Sequence[Sensitivity]) -> list[dict[str, Any]]:
    """Return one record for every question, factor and baseline of every model."""
    return [r for one in found for r in (*_believed_records(one), *_modelled_records(one))]


def _believed_records(found: Sensitivity) -> Iterator[dict[str, Any]]:
    for speedup in found.believed:
        low, high = speedup.interval or (None, None)
        yield {
            "model": found.model,
            "question": "believed",
            "factor": believed_factor(speedup.method),
            "policy": speedup.method,
            "baseline": speedup.baseline,
            "target": speedup.target,
            "state": speedup.state,
            "speedup_median": speedup.centre,
            "speedup_low": low,
            "speedup_high": high,
            "n": len(speedup.pairs),
            **_clock(speedup.pairs[0].method.run),
        }


def _modelled_records(found: Sensitivity) -> Iterator[dict[str, Any]]:
    for one in found.modelled:
        for gbs in (*one.fixed_s, None):
            yield {
                "model": found.model,
                "question": "modelled",
                "factor": one.factor,
                "policy": METHOD,
                "baseline": HINDSIGHT if gbs is None else f"fixed-best-gbs{gbs}",
                "state": "ratio" if one.chain_s else "not_reached",
                "speedup_median": one.speedup(gbs),
                "n": 1,
                "cona_s": one.chain_s,
                "baseline_s": one.fixed_s[one.best_gbs if gbs is None else gbs],
                "num_switches": one.num_switches,
                "best_gbs": one.best_gbs,
                "run_key": one.run.result["run_key"],
                **_clock(one.run),
            }


def _clock(run: Run) -> dict[str, Any]:
    return {"clock": run.clock["kind"], "time_source": run.clock["time_source"]}


def markdown(tier: str, runs: Sequence[Run], found: Sequence[Sensitivity]) -> str:
    """Return the page, two tables for each model."""
    own = (
        "**Believed**: real runs, `cona-noise<x>` and `cona` (x = 1). The controller takes the GNS "
        "for x times what it measures: what a wrong GNS costs, at the headline target.",
        "**Modelled**: what if the model's GNS were x times the recorded one? Nothing is trained. "
        "An iteration at batch B progresses B/(B + GNS) noiseless steps. The noise that `cona`'s "
        "first seed recorded, by its progress, is scaled; `cona` is replayed on it, and compared "
        "with every fixed batch size in the time to that run's whole progress. n = 1, no interval. "
        f"A replay has {BUDGETS[0]:g} (else {BUDGETS[1]:g}) times the seconds of the best fixed "
        "batch size.",
        "Modelled at x = 1, `cona` takes the recorded run's own time. The fixed batch sizes were "
        "trained too (believed, x = 1): there, learning rates and the limits of B/(B + GNS) count.",
        INTERVAL,
    )
    blocks = [block for one in found for block in _section(one)]
    return page(
        f"# Sensitivity to the gradient noise scale, tier {tier}, {num_seeds(runs)}",
        notes(runs, *own),
        *(blocks or ["No finished `cona` run."]),
    )


def _section(found: Sensitivity) -> Iterator[str]:
    yield f"## {found.model} ({found.metric})"
    target = "no headline target" if found.headline is None else label(found.headline)
    yield f"**Believed**, speed-up at target {target}:"
    yield _believed(found.believed)
    yield "**Modelled**, speed-up in time to the same progress:"
    yield found.why_none or _modelled(found.modelled)


def _believed(shown: Sequence[Speedup]) -> str:
    ours = [s for s in shown if fixed_gbs(s.baseline) is not None or s.baseline == HINDSIGHT]
    if not ours:
        return "Nothing to compare: it takes a fixed-best run that reached a target."
    methods = sorted(unique(s.method for s in ours), key=lambda m: believed_factor(m) or 0.0)
    cells = {(s.baseline, s.method): cell(s) for s in ours}
    baselines = unique(s.baseline for s in ours)
    rows = [[b, *(cells.get((b, m), "–") for m in methods)] for b in baselines]
    return table(["over", *(f"x {believed_factor(m):g}" for m in methods)], rows)


def _modelled(shown: Sequence[Modelled]) -> str:
    sizes = list(shown[0].fixed_s)
    rows = [[f"fixed-best-gbs{g}", *(_ratio(one, g) for one in shown)] for g in sizes]
    rows += [[HINDSIGHT, *(_ratio(one, None) for one in shown)]]
    rows += [["its gbs", *(str(one.best_gbs) for one in shown)]]
    rows += [["cona's seconds", *(number(one.chain_s) for one in shown)]]
    rows += [["cona's switches", *(str(one.num_switches) for one in shown)]]
    return table(["over", *(f"x {factor:g}" for factor in FACTORS)], rows)


def _ratio(one: Modelled, gbs: int | None) -> str:
    return "not reached" if one.chain_s is None else ratio(one.speedup(gbs))
