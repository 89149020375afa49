"""What both switch rules share: the current stage, the rungs' fastest strategies, log details."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from cona.gns import GnsEstimate
from cona.policy import Details, Problem
from cona.search import best
from cona.strategy import Strategy

T_WINDOW = 50
"""T_cur is the median of this many last iterations."""
T_MINIMUM = 8
"""Fewest iterations that give a T_cur."""


@dataclass(kw_only=True)
class Stage:
    """What was measured since the start or the last switch."""

    start_samples: int
    start_s: float
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=T_WINDOW))
    num_iterations: int = 0

    def add(self, iteration_s: float) -> None:
        """Add one measured iteration, seconds; not one of the warm-up."""
        self.times_s.append(iteration_s)
        self.num_iterations += 1

    @property
    def time_s(self) -> float:
        """T_cur: median of the last measured iterations, seconds."""
        return statistics.median(self.times_s)


def best_per_rung(problem: Problem) -> dict[int, tuple[Strategy, float]]:
    """Return each rung's fastest strategy and its T in seconds, by the policy's belief."""
    return {gbs: best(problem.space.at(gbs), problem.belief) for gbs in problem.rungs}


def gns_details(estimate: GnsEstimate) -> Details:
    """Return the estimate and its 90 % interval for the decision log, in samples."""
    low, high = estimate.interval()
    return {"gns": estimate.gns, "gns_low": low, "gns_high": high}
