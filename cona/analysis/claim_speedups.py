"""Claims about times to the headline target: speed-ups, from the lowest to the highest.

Source: method.md 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from cona.analysis.claim_numbers import Measured, nothing
from cona.analysis.gap import BEST
from cona.analysis.groups import METHOD, fixed_gbs, is_oracle, unique
from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, ratio
from cona.analysis.speedup import HINDSIGHT, Cells, Pair, Speedup, speedups
from cona.analysis.ttp import Ttp, headline_target, ttp_rows

REFERENCE = BEST
"""At the headline target: of every seed the fastest of its oracles and fixed-best runs."""


def cona_over_offline(group: Sequence[Run]) -> Measured:
    """Measure the speed-up of CONA over every offline policy."""
    return _over(group, lambda rows: _of_cona(rows, in_hindsight=False))


def cona_over_hindsight(group: Sequence[Run]) -> Measured:
    """Measure the speed-up of CONA over the best fixed strategy in hindsight."""
    return _over(group, lambda rows: _of_cona(rows, in_hindsight=True))


def cona_over_planners(group: Sequence[Run]) -> Measured:
    """Measure the speed-up of CONA over every planner, at the batch size that the tier gives it."""
    if not any(run.kind == "offline" and fixed_gbs(run.policy) is None for run in group):
        return nothing("there is no planner's run")
    return _over(group, _of_cona_over_planners)


def reference_over_offline(group: Sequence[Run]) -> Measured:
    """Measure the speed-up of the best that is known over every offline policy."""
    if not any(is_oracle(run.policy) for run in group):
        return nothing("there is no oracle")
    return _over(group, over_reference)


def _over(group: Sequence[Run], compare: Callable[[Sequence[Ttp]], list[Speedup]]) -> Measured:
    """Measure speed-ups at the headline target, from the lowest to the highest."""
    if not any(fixed_gbs(run.policy) is not None for run in group):
        return nothing("there is no fixed-best run")
    rows = ttp_rows(group)
    target = headline_target(rows)
    if target is None:
        return nothing("no fixed strategy reached a target at every seed: no headline target")
    found = compare([row for row in rows if row.target == target])
    if not found:
        return nothing("no pair of runs shares a seed")
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


def _of_cona_over_planners(rows: Sequence[Ttp]) -> list[Speedup]:
    found = _of_cona(rows, in_hindsight=False)
    return [speedup for speedup in found if fixed_gbs(speedup.baseline) is None]


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
    if _text(lowest) == _text(highest):
        return f"{_text(lowest)} over each of {len(found)} policies"
    return f"{_text(lowest)} over {lowest.baseline} to {_text(highest)} over {highest.baseline}"


def _brief_span(found: Sequence[Speedup]) -> str:
    ends = [_bound(pick(found, key=lambda s: s.centre or 0.0)) for pick in (min, max)]
    return f"{' to '.join(unique(ends))}×"


def _bound(speedup: Speedup) -> str:
    return ("≥ " if speedup.state == "at_least" else "") + ratio(speedup.centre)


def _text(speedup: Speedup) -> str:
    ends = " [{}, {}]".format(*map(ratio, speedup.interval)) if speedup.interval else ""
    return f"{_bound(speedup)}×{ends}"
