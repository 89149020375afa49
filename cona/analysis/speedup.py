"""Speed-ups: TTP(baseline)/TTP(method), paired by seed.

Source: method.md 7. Offline policies are the baselines, all others the methods. The best of the
`fixed-best` runs in hindsight is a baseline too: no planner could have known it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Literal

from cona.analysis.groups import fixed_gbs, unique
from cona.analysis.statistics import log_t_interval
from cona.analysis.ttp import Ttp
from cona.cost.switch import PRESETS

HINDSIGHT = "best fixed in hindsight"
"""The fixed-best run with the smallest TTP at a target, chosen for each seed."""

State = Literal["ratio", "at_least", "not_reached"]
"""A ratio; a lower bound (baseline unreached); or the method did not reach the target."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One method against one baseline at one target and seed."""

    method: Ttp
    baseline: Ttp
    """With `HINDSIGHT`: the best fixed-best run."""

    @property
    def state(self) -> State:
        """What can be said about the speed-up."""
        if self.method.crossing is None:
            return "not_reached"
        return "ratio" if self.baseline.crossing else "at_least"

    @property
    def value(self) -> float | None:
        """The ratio, or budget/TTP as its lower bound; None: the method did not reach it."""
        if self.method.train_s is None:
            return None
        baseline_s = self.baseline.train_s
        return (self.method.run.budget_s if baseline_s is None else baseline_s) / (
            self.method.train_s
        )

    @property
    def recharged(self) -> dict[str, float | None]:
        """The ratio of the same decisions under each switch-cost preset; None: it has none."""
        ours, theirs = self.method.crossing, self.baseline.crossing
        if ours is None or theirs is None:
            return dict.fromkeys(PRESETS)
        both = ours.recharged_s.keys() & theirs.recharged_s.keys()
        return {
            p: theirs.recharged_s[p] / ours.recharged_s[p] if p in both else None for p in PRESETS
        }


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A method against a baseline at one target, over the seeds that both ran."""

    method: str
    baseline: str
    target: float
    pairs: tuple[Pair, ...]
    """One for each common seed."""

    @property
    def state(self) -> State:
        """The weakest state of any seed: one unreached method or baseline decides."""
        states = {p.state for p in self.pairs}
        if "not_reached" in states:
            return "not_reached"
        return "at_least" if "at_least" in states else "ratio"

    @property
    def num_reached(self) -> int:
        """Seeds at which the method reached the target."""
        return sum(p.state != "not_reached" for p in self.pairs)

    @property
    def points(self) -> list[float]:
        """Ratios or lower bounds, by seed."""
        return [p.value for p in self.pairs if p.value is not None]

    @property
    def centre(self) -> float | None:
        """Median over seeds; with state `at_least` a lower bound of it (bounds put in)."""
        return None if self.state == "not_reached" else median(self.points)

    @property
    def interval(self) -> tuple[float, float] | None:
        """t interval of the log ratio; None with a bound among the points or too few seeds."""
        return log_t_interval(self.points) if self.state == "ratio" else None


Cells = dict[tuple[str, int], Ttp]
"""TTP rows of one model and target, by policy and seed."""


def speedups(rows: Sequence[Ttp]) -> list[Speedup]:
    """Return every method against every baseline of one model, hardest target last.

    Args:
        rows: TTP rows of one model.
    """
    found = []
    for target in unique(r.target for r in rows):
        cells = {(r.run.policy, r.run.seed): r for r in rows if r.target == target}
        for method, baseline in product(*_sides(cells)):
            if pairs := tuple(_pairs(cells, method, baseline)):
                found.append(Speedup(method=method, baseline=baseline, target=target, pairs=pairs))
    return found


def _sides(cells: Cells) -> tuple[list[str], list[str]]:
    kinds = {row.run.policy: row.run.kind for row in cells.values()}
    baselines = [p for p, kind in kinds.items() if kind == "offline"]
    if any(fixed_gbs(p) is not None for p in baselines):
        baselines.append(HINDSIGHT)
    return [p for p, kind in kinds.items() if kind != "offline"], baselines


def _pairs(cells: Cells, method: str, baseline: str) -> Iterator[Pair]:
    for (policy, seed), row in cells.items():
        if policy != method:
            continue
        rival = best_static(cells, seed) if baseline == HINDSIGHT else cells.get((baseline, seed))
        if rival is not None:
            yield Pair(method=row, baseline=rival)


def best_static(cells: Cells, seed: int) -> Ttp | None:
    """Return the fixed-best row of a seed with the smallest TTP.

    If none reached the target, the first stands for all of them; None if there is none.
    """
    fixed = [r for (p, s), r in cells.items() if s == seed and fixed_gbs(p) is not None]
    return min(fixed, key=lambda r: math.inf if r.train_s is None else r.train_s, default=None)
