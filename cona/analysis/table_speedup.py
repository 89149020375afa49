"""The table of speed-ups: every method against every baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cona.analysis.groups import METHOD, by_model, marked, unique
from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, page, ratio, table, yes
from cona.analysis.notes import HEADLINE, INTERVAL, notes, num_seeds
from cona.analysis.panels import MOST_LINES
from cona.analysis.speedup import HINDSIGHT, Pair, Speedup, speedups
from cona.analysis.table_ttp import columns_sentence, headers, left_out, shown_targets
from cona.analysis.ttp import headline_target, ttp_rows
from cona.cost.switch import PRESETS

COLUMNS = (
    *("model", "method", "kind", "baseline", "metric", "target", "headline", "state"),
    *("speedup_median", "speedup_low", "speedup_high", "n", "n_method_reached"),
    *("clock", "time_source"),
)
"""`kind`: the method's; one of kind bound is no method. `state` at_least: the median is a lower
bound, from budget/TTP of an unreached baseline."""
PAIR_COLUMNS = (
    *("model", "method", "baseline", "baseline_policy", "seed", "target", "state", "speedup"),
    *("speedup_at_least", "ttp_method_s", "ttp_baseline_s"),
    *(f"speedup_recharged_{p}" for p in PRESETS),
)
"""One row for each seed; `baseline_policy` says which fixed-best was best in hindsight."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every method, baseline and target."""
    found = []
    for group in by_model(runs).values():
        rows = ttp_rows(group)
        headline = headline_target(rows)
        found += [{**_record(s), "headline": yes(s.target == headline)} for s in speedups(rows)]
    return found


def _record(speedup: Speedup) -> dict[str, Any]:
    run = speedup.pairs[0].method.run
    low, high = speedup.interval or (None, None)
    return {
        "model": run.model,
        "method": speedup.method,
        "kind": run.kind,
        "baseline": speedup.baseline,
        "metric": run.metric,
        "target": speedup.target,
        "state": speedup.state,
        "speedup_median": speedup.centre,
        "speedup_low": low,
        "speedup_high": high,
        "n": len(speedup.pairs),
        "n_method_reached": speedup.num_reached,
        "clock": run.clock["kind"],
        "time_source": run.clock["time_source"],
    }


def pair_records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every method, baseline, target and seed."""
    return [
        _pair_record(speedup, pair)
        for group in by_model(runs).values()
        for speedup in speedups(ttp_rows(group))
        for pair in speedup.pairs
    ]


def _pair_record(speedup: Speedup, pair: Pair) -> dict[str, Any]:
    exact = pair.state == "ratio"
    return {
        "model": pair.method.run.model,
        "method": speedup.method,
        "baseline": speedup.baseline,
        "baseline_policy": pair.baseline.run.policy if pair.baseline.crossing else None,
        "seed": pair.method.run.seed,
        "target": speedup.target,
        "state": pair.state,
        "speedup": pair.value if exact else None,
        "speedup_at_least": None if exact else pair.value,
        "ttp_method_s": pair.method.train_s,
        "ttp_baseline_s": pair.baseline.train_s,
        **{f"speedup_recharged_{p}": value for p, value in pair.recharged.items()},
    }


def cell(speedup: Speedup) -> str:
    """Return a speed-up as text: the centre, all points, the interval, or its state."""
    centre, count = speedup.centre, len(speedup.pairs)
    if centre is None:
        reached = f" ({speedup.num_reached}/{count})" if count > 1 else ""
        return f"{NOT_REACHED}{reached}"
    text = ("≥ " if speedup.state == "at_least" else "") + ratio(centre)
    if count > 1:
        text += f" ({', '.join(_point(p) for p in speedup.pairs)})"
    if speedup.interval:
        text += " [{}, {}]".format(*(ratio(x) for x in speedup.interval))
    return text


def _point(pair: Pair) -> str:
    return ("≥ " if pair.state == "at_least" else "") + ratio(pair.value)


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page of speed-ups, one section for each model."""
    own = (
        "Speed-up = TTP(baseline)/TTP(method); above 1 the method is faster. `fixed-best-gbsN`: "
        "the best layout for one global batch size.",
        f"`{HINDSIGHT}`: the fixed-best run with the smallest TTP at that target and seed, which "
        "nobody could have known before.",
        "`≥ x`: the baseline did not reach the target within the budget, x = budget/TTP(method). "
        f"`{NOT_REACHED}`: the method did not.",
        f"{columns_sentence('speedup.csv')} {HEADLINE}",
        f"Rows: with more than {MOST_LINES} policies only `{METHOD}` over all of them, and the "
        f"others over `{HINDSIGHT}`; `speedup.csv` has all pairs.",
        "(bound): no method, it trains ahead at no cost on the clock.",
        INTERVAL,
    )
    sections = [b for group in by_model(runs).values() for b in _section(group)]
    return page(f"# Speed-up, tier {tier}, {num_seeds(runs)}", notes(runs, *own), *sections)


def _section(group: Sequence[Run]) -> Iterator[str]:
    rows = ttp_rows(group)
    found = speedups(rows)
    yield f"## {group[0].model} ({group[0].metric})"
    if not found:
        yield "Nothing to compare: it takes an offline policy, another one and a reached target."
        return
    targets = shown_targets(rows)
    cells = {(s.method, s.baseline, s.target): cell(s) for s in found}
    kinds = {row.run.policy: row.run.kind for row in rows}
    pairs = _shown_pairs(unique((s.method, s.baseline) for s in found), len(kinds))
    yield table(
        ["method", "baseline", *headers(rows)],
        [[marked(m, kinds[m]), b, *(cells.get((m, b, t), "–") for t in targets)] for m, b in pairs],
    )
    yield left_out(rows)


def _shown_pairs(pairs: Sequence[tuple[str, str]], num_policies: int) -> list[tuple[str, str]]:
    """Return the methods and baselines that have a row, hindsight first; of many not all."""
    places = {method: place for place, method in enumerate(unique(m for m, _ in pairs))}
    ordered = sorted(pairs, key=lambda pair: (places[pair[0]], pair[1] != HINDSIGHT))
    if num_policies <= MOST_LINES:
        return ordered
    return [pair for pair in ordered if METHOD in pair or HINDSIGHT in pair]
