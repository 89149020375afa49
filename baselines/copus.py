"""COPUS: moves to the layout, micro-batch and batch size of the largest goodput.

Sakip et al. 2026 (arXiv 2604.26687). Over all feasible strategies of the ladder it ranks by

    value = gbs/T * sqrt(gbs)/(gbs + c*GNS),   c = 2

which is throughput times statistical efficiency, times the learning rate's growth under AdamW
(lr ~ sqrt(gbs)); at equal throughput it is largest at gbs = c*GNS, the critical batch size. It
switches only to a value at least 10 % above the current one.

Left out: its profiler (T is the belief's, of all candidates alike) and its reconfiguration
(the clock's switch cost). ASSUMED: the smoothed GNS is the run's, its own EMA is not known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from cona.controller.narrow import best_at, feasible, runnable_rungs
from cona.controller.patience import Patience
from cona.policy import Decision, Details, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy

CALIBRATION = 2.0
"""c: critical batch size over GNS."""

THRESHOLD = 1.1
"""Ratio of values from which on it switches."""


@dataclass(kw_only=True)
class Copus:
    """argmax goodput * sqrt(gbs) over everything that fits, with a threshold of 10 %."""

    name: ClassVar[str] = "copus"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = (
        "layout, mbs and gbs of the largest goodput * sqrt(gbs), if 10 % better"
    )
    source: ClassVar[str] = "COPUS (Sakip et al. 2026, arXiv 2604.26687)"

    c: float = CALIBRATION
    """Critical batch size over GNS."""
    lr_rule: LrRule | None = "sqrt"
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _candidates: list[Strategy] = field(init=False, repr=False)
    _times_s: np.ndarray = field(init=False, repr=False)
    _patience: Patience = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch that can run."""
        self._patience = Patience(problem)
        rungs = runnable_rungs(problem)
        self._candidates = [strategy for gbs in rungs for strategy in feasible(problem, gbs)]
        self._times_s = problem.belief.times_s(self._candidates)
        return best_at(problem, rungs[0])

    def decide(self, observation: Observation) -> Decision:
        """Return the strategy of the largest value, if that is 10 % above the current one."""
        if wait := self._patience.wait(observation):
            return wait
        gns = observation.gns.gns
        if gns is None or not math.isfinite(self.c * gns):
            return Decision(strategy=None, reason="no GNS estimate yet")
        values = [
            value(s.gbs, iteration_s, self.c * gns)
            for s, iteration_s in zip(self._candidates, self._times_s, strict=True)
        ]
        current = values[self._candidates.index(observation.strategy)]
        winner = self._candidates[int(np.argmax(values))]
        gain = max(values) / current
        details: Details = {"gns": gns, "gain": gain, "next": str(winner)}
        reason = f"{gain:.3f} times the current value"
        if gain < THRESHOLD:
            return Decision(strategy=None, reason=reason, details=details)
        self._patience.begin(observation)
        return Decision(strategy=winner, reason=reason, details=details)


def value(gbs: int, iteration_s: float, critical_gbs: float) -> float:
    """Return goodput times the learning rate's growth, up to a constant.

    Args:
        gbs: samples per iteration.
        iteration_s: T, seconds per iteration.
        critical_gbs: c*GNS, samples.

    Source: baselines.md 12
    """
    return gbs / iteration_s * math.sqrt(gbs) / (gbs + critical_gbs)
