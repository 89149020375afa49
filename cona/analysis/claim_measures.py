"""What the claims measure, in the runs of one model.

Source: method.md 7 and 8; which number decides is in `config/claims.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cona.analysis.claim_specs import Measure
from cona.analysis.gap import BEST, oracle_gaps
from cona.analysis.groups import METHOD, ORACLE, fixed_gbs, is_oracle, unique
from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, number, percent, ratio
from cona.analysis.speedup import HINDSIGHT, Cells, Pair, Speedup, speedups
from cona.analysis.statistics import log_t_interval
from cona.analysis.ttp import Ttp, headline_target, label, ttp_rows

REFERENCE = BEST
"""At the headline target: of every seed the fastest of its oracles and fixed-best runs."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one claim for one model."""

    ours: str
    """As text: the centre over seeds, its interval, and of what."""
    brief: str = "–"
    """The same in a few words, without intervals."""
    strict: float | None = None
    """The number that the limit `reproduced` is for; None: the target was not reached."""
    mild: float | None = None
    """The number that the limit `same_direction` is for."""
    target: float | None = None
    """Perplexity that TTPs are to; None: the measure has none."""
    num_seeds: int = 0
    """Seeds of the method."""
    num_reached: int = 0
    """Seeds at which it reached the target."""
    num_pairs: int = 0
    """Common seeds of the comparison that has the fewest."""
    why_none: str | None = None
    """Why there is nothing to compare; None: there is."""


def measure(what: Measure, group: Sequence[Run]) -> Measured:
    """Return the numbers of a measure.

    Args:
        what: name of the measure.
        group: the runs of one model that it compares.
    """
    return _MEASURES[what](group)


def _nothing(why: str) -> Measured:
    return Measured(ours="–", why_none=why)


# --- times to the headline target ---------------------------------------------------------------


def _cona_over_offline(group: Sequence[Run]) -> Measured:
    return _over(group, lambda rows: _of_cona(rows, in_hindsight=False))


def _cona_over_hindsight(group: Sequence[Run]) -> Measured:
    return _over(group, lambda rows: _of_cona(rows, in_hindsight=True))


def _reference_over_offline(group: Sequence[Run]) -> Measured:
    if not any(is_oracle(run.policy) for run in group):
        return _nothing("there is no oracle")
    return _over(group, over_reference)


def _over(group: Sequence[Run], compare: Callable[[Sequence[Ttp]], list[Speedup]]) -> Measured:
    """Measure speed-ups at the headline target, from the lowest to the highest."""
    if not any(fixed_gbs(run.policy) is not None for run in group):
        return _nothing("there is no fixed-best run")
    rows = ttp_rows(group)
    target = headline_target(rows)
    if target is None:
        return _nothing("no fixed strategy reached a target at every seed: no headline target")
    found = compare([row for row in rows if row.target == target])
    if not found:
        return _nothing("no pair of runs shares a seed")
    seeds = {pair.method.run.seed: pair.state for speedup in found for pair in speedup.pairs}
    is_reached = all(speedup.centre is not None for speedup in found)
    return Measured(
        ours=_span(found) if is_reached else NOT_REACHED,
        brief=_brief_span(found) if is_reached else NOT_REACHED,
        strict=min(map(_lower_end, found)) if is_reached else None,
        mild=min(s.centre or 0.0 for s in found) if is_reached else None,
        target=target,
        num_seeds=len(seeds),
        num_reached=sum(state != "not_reached" for state in seeds.values()),
        num_pairs=min(len(speedup.pairs) for speedup in found),
    )


def _of_cona(rows: Sequence[Ttp], *, in_hindsight: bool) -> list[Speedup]:
    return [
        speedup
        for speedup in speedups(rows)
        if speedup.method == METHOD and (speedup.baseline == HINDSIGHT) == in_hindsight
    ]


def over_reference(rows: Sequence[Ttp]) -> list[Speedup]:
    """Return the speed-up of the best that is known over every offline policy.

    Args:
        rows: one model's TTP at one target. A seed without an oracle has no reference.
    """
    cells: Cells = {(row.run.policy, row.run.seed): row for row in rows}
    offline = unique(row.run.policy for row in rows if row.run.kind == "offline")
    found = ((policy, tuple(_reference_pairs(cells, policy))) for policy in offline)
    return [
        Speedup(method=REFERENCE, baseline=policy, target=rows[0].target, pairs=pairs)
        for policy, pairs in found
        if pairs
    ]


def _reference_pairs(cells: Cells, policy: str) -> Iterator[Pair]:
    for (name, seed), row in cells.items():
        if name != policy:
            continue
        same = [(p, r) for (p, s), r in cells.items() if s == seed]
        known = [r for p, r in same if is_oracle(p) or fixed_gbs(p) is not None]
        if any(is_oracle(p) for p, _ in same):
            yield Pair(method=min(known, key=_seconds), baseline=row)


def _seconds(row: Ttp) -> float:
    return math.inf if row.train_s is None else row.train_s


def _lower_end(speedup: Speedup) -> float:
    """The interval's lower end; without one (a bound, too few seeds) the lowest of its seeds."""
    return speedup.interval[0] if speedup.interval else min(speedup.points)


def _span(found: Sequence[Speedup]) -> str:
    """Return speed-ups as text, from the lowest to the highest and over which policies."""
    lowest, highest = (pick(found, key=lambda s: s.centre or 0.0) for pick in (min, max))
    if len(found) == 1:
        return _text(lowest)
    return f"{_text(lowest)} over {lowest.baseline} to {_text(highest)} over {highest.baseline}"


def _brief_span(found: Sequence[Speedup]) -> str:
    ends = [_bound(pick(found, key=lambda s: s.centre or 0.0)) for pick in (min, max)]
    return f"{' to '.join(unique(ends))}×"


def _bound(speedup: Speedup) -> str:
    return ("≥ " if speedup.state == "at_least" else "") + ratio(speedup.centre)


def _text(speedup: Speedup) -> str:
    ends = " [{}, {}]".format(*map(ratio, speedup.interval)) if speedup.interval else ""
    return f"{_bound(speedup)}×{ends}"


# --- perplexity ---------------------------------------------------------------------------------


def _gap_to_best_known(group: Sequence[Run]) -> Measured:
    found = [g for g in oracle_gaps(group) if (g.reference, g.run.policy) == (BEST, METHOD)]
    gaps = [g.gap for g in found if g.gap]
    if not found or len(gaps) < len(found):
        return _nothing(
            "the curves share no time" if found else "there is no oracle at cona's seed"
        )
    largest, mean = [g.largest for g in gaps], [g.mean for g in gaps]
    return Measured(
        ours=f"max {_percentage(largest)}, mean {_percentage(mean)}",
        brief=f"max {percent(median(largest))}, mean {percent(median(mean))}",
        strict=_upper_end(largest),
        mild=_upper_end(mean),
        num_seeds=len(gaps),
        num_reached=len(gaps),
        num_pairs=len(gaps),
    )


def _ppl_interval(gaps: Sequence[float]) -> tuple[float, float] | None:
    """The t interval of the gap; perplexities are compared as ratios, ppl/ppl_reference."""
    ends = log_t_interval([1 + gap for gap in gaps])
    return ends and (ends[0] - 1, ends[1] - 1)


def _upper_end(gaps: Sequence[float]) -> float:
    ends = _ppl_interval(gaps)
    return ends[1] if ends else max(gaps)


def _percentage(gaps: Sequence[float]) -> str:
    ends = _ppl_interval(gaps)
    return percent(median(gaps)) + (" [{}, {}]".format(*map(percent, ends)) if ends else "")


# --- switches -----------------------------------------------------------------------------------


def _changes(group: Sequence[Run]) -> Measured:
    ours = [run for run in group if run.policy == METHOD]
    if not ours:
        return _nothing("there is no cona run")
    counts = [len(run.switches) for run in ours]
    oracle = [run for run in group if run.policy == ORACLE]
    beside = [f"{ORACLE}: {_counts(oracle)}"] if oracle else []
    return Measured(
        ours="; ".join([f"{METHOD}: {_counts(ours)}", *beside]),
        brief=f"{_middle(counts)} changes",
        strict=min(counts),
        mild=min(counts),
        num_seeds=len(ours),
        num_reached=len(ours),
        num_pairs=len(ours),
    )


def _counts(runs: Sequence[Run]) -> str:
    """Return the changes of some seeds as text: of the strategy, of its gbs, of its layout."""
    gbs = [sum(_gbs(s["from"]) != _gbs(s["to"]) for s in run.switches) for run in runs]
    layout = [sum(_layout(s["from"]) != _layout(s["to"]) for s in run.switches) for run in runs]
    of_all = _middle([len(run.switches) for run in runs])
    return f"{of_all}, of gbs {_middle(gbs)}, of layout {_middle(layout)}"


def _middle(counts: Sequence[int]) -> str:
    text = number(median(counts))
    return text if min(counts) == max(counts) else f"{text} ({min(counts)} to {max(counts)})"


def _gbs(strategy: str) -> str:
    return strategy.rpartition("-gbs")[2]


def _layout(strategy: str) -> str:
    return strategy.partition("-mbs")[0]


_MEASURES: Mapping[Measure, Callable[[Sequence[Run]], Measured]] = {
    "reference_over_offline": _reference_over_offline,
    "cona_over_offline": _cona_over_offline,
    "cona_over_hindsight": _cona_over_hindsight,
    "gap_to_best_known": _gap_to_best_known,
    "changes": _changes,
}


def target_text(measured: Measured) -> str:
    """Return the target as text, nothing where the measure has none."""
    return "" if measured.target is None else label(measured.target)
