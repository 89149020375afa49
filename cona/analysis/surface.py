"""The speed-up of `cona` over `fixed-best` as a surface over the baseline's batch size and target.

How large a speed-up is depends on both: an offline planner is told a batch size, and nobody says
which. Source: method.md 8; issue 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from cona.analysis.groups import METHOD, by_model, fixed_gbs, unique
from cona.analysis.load import Run
from cona.analysis.panels import SHOWN_FROM
from cona.analysis.speedup import HINDSIGHT, Speedup, speedups
from cona.analysis.statistics import median_reached
from cona.analysis.ttp import headline_target, interpolated_rows, ttp_rows

LEVELS = (1.4, 9.6)
"""The paper's range of speed-ups over offline methods, claim C2."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One model's surface."""

    model: str
    metric: str
    """Name of the perplexity."""
    targets: tuple[float, ...]
    """Perplexities, easy to hard."""
    gbs: tuple[int, ...]
    """Batch sizes of the baselines, ascending, samples."""
    cells: dict[tuple[int, float], Speedup]
    """By batch size and target; a target that `cona` missed at some seed has no centre."""
    best_gbs: dict[float, int]
    """By target: the batch size of the best fixed strategy in hindsight, median over seeds."""
    headline: float | None
    """The headline target."""

    def centre(self, gbs: int, target: float) -> float | None:
        """Return a cell's speed-up, or its lower bound; None: `cona` missed it, or no such run."""
        cell = self.cells.get((gbs, target))
        return cell.centre if cell else None

    def share(self, at_least: float) -> float:
        """Return the share of cells with a speed-up (or bound) of at least a number."""
        known = [cell.centre for cell in self.cells.values() if cell.centre is not None]
        return sum(x >= at_least for x in known) / len(known) if known else 0.0


def of_method(group: Sequence[Run]) -> list[Speedup]:
    """Return the speed-ups of `cona` at the targets that it takes 4 % of the budget to reach.

    TTP is interpolated between evaluations: ratios of times at evaluations would jump with the grid
    where a target is met early.

    Args:
        group: runs of one model.
    """
    ours = [r for r in group if r.policy == METHOD or r.kind == "offline"]
    found = speedups(interpolated_rows(ttp_rows(ours)))
    earliest_s = SHOWN_FROM * group[0].budget_s
    return [s for s in found if s.method == METHOD and _is_late(s, earliest_s)]


def _is_late(speedup: Speedup, earliest_s: float) -> bool:
    """Return whether the method took long enough; a target that it missed took the budget."""
    middle = median_reached([pair.method.train_s for pair in speedup.pairs])
    return middle is None or middle >= earliest_s


def surfaces(runs: Sequence[Run]) -> list[Surface]:
    """Return the surface of every model in which `cona` was compared with `fixed-best` runs."""
    return [s for s in map(_surface, by_model(runs).values()) if s.cells]


def _surface(group: Sequence[Run]) -> Surface:
    found = of_method(group)
    cells = {(g, s.target): s for s in found if (g := fixed_gbs(s.baseline)) is not None}
    best = {s.target: gbs for s in found if s.baseline == HINDSIGHT and (gbs := _best_gbs(s))}
    return Surface(
        model=group[0].model,
        metric=group[0].metric,
        targets=tuple(unique(s.target for s in found)),
        gbs=tuple(sorted({gbs for gbs, _ in cells})),
        cells=cells,
        best_gbs=best,
        headline=headline_target(ttp_rows(group)),
    )


def _best_gbs(hindsight: Speedup) -> int | None:
    """Return the batch size of the best fixed strategy; None if none reached it at any seed."""
    best = [p.baseline.run.policy for p in hindsight.pairs if p.baseline.crossing]
    return median_low([gbs for policy in best if (gbs := fixed_gbs(policy))]) if best else None
