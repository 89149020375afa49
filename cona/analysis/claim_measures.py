"""What the claims measure, in the runs of one model.

Source: method.md 7 and 8; which number decides is in `config/claims.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from cona.analysis import claim_speedups
from cona.analysis.claim_numbers import Measured, nothing
from cona.analysis.claim_specs import Measure
from cona.analysis.gap import BEST, oracle_gaps
from cona.analysis.groups import METHOD, ORACLE
from cona.analysis.load import Run
from cona.analysis.markdown import number, percent
from cona.analysis.statistics import log_t_interval


def measure(what: Measure, group: Sequence[Run]) -> Measured:
    """Return the numbers of a measure.

    Args:
        what: name of the measure.
        group: the runs of one model that it compares.
    """
    return _MEASURES[what](group)


# --- perplexity ---------------------------------------------------------------------------------


def _gap_to_best_known(group: Sequence[Run]) -> Measured:
    found = [g for g in oracle_gaps(group) if (g.reference, g.run.policy) == (BEST, METHOD)]
    gaps = [g.gap for g in found if g.gap]
    if not found or len(gaps) < len(found):
        return nothing("the curves share no time" if found else "there is no oracle at cona's seed")
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
        return nothing("there is no cona run")
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
    "reference_over_offline": claim_speedups.reference_over_offline,
    "cona_over_offline": claim_speedups.cona_over_offline,
    "cona_over_hindsight": claim_speedups.cona_over_hindsight,
    "cona_over_planners": claim_speedups.cona_over_planners,
    "gap_to_best_known": _gap_to_best_known,
    "changes": _changes,
}
