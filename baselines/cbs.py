"""The fixed-layout rivals of COPUS: the batch size follows the critical one, the layout stays.

Sakip et al. 2026 (arXiv 2604.26687). gbs = the ladder's value nearest to c*GNS (c = 2), never
down. `cbs-pessimistic` holds the layout that is fastest at the smallest batch, `cbs-optimistic`
the one that is fastest at the largest. A batch size that its layout cannot run is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from cona.controller.narrow import best_at, runnable_rungs, with_layout
from cona.controller.patience import Patience
from cona.policy import Decision, Details, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy

CALIBRATION = 2.0
"""c: critical batch size over GNS, as in COPUS."""


@dataclass(kw_only=True)
class CbsPessimistic:
    """Nearest rung to c*GNS, never down, in the layout that is fastest at the smallest batch."""

    name: ClassVar[str] = "cbs-pessimistic"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = "gbs follows 2*GNS, never down; the layout best at the smallest stays"
    source: ClassVar[str] = "rival of COPUS (Sakip et al. 2026, arXiv 2604.26687)"

    c: float = CALIBRATION
    """Critical batch size over GNS."""
    lr_rule: LrRule | None = "sqrt"
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _patience: Patience = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fixed layout's fastest strategy of the smallest batch that it can run."""
        planned = self._planned_gbs(problem)
        self._problem = with_layout(problem, best_at(problem, planned).layout)
        self._patience = Patience(problem)
        return best_at(self._problem, self._problem.rungs[0])

    def _planned_gbs(self, problem: Problem) -> int:
        return runnable_rungs(problem)[0]

    def decide(self, observation: Observation) -> Decision:
        """Return the fixed layout's fastest strategy of the critical batch once that grew."""
        if wait := self._patience.wait(observation):
            return wait
        gns = observation.gns.gns
        if gns is None or not math.isfinite(self.c * gns):
            return Decision(strategy=None, reason="no GNS estimate yet")
        gbs = nearest_rung(self._problem.rungs, self.c * gns)
        reason = f"gbs {gbs} is nearest to {self.c:g}*GNS"
        details: Details = {"gns": gns, "critical_gbs": self.c * gns}
        if gbs <= observation.strategy.gbs:
            return Decision(strategy=None, reason=reason, details=details)
        self._patience.begin(observation)
        return Decision(strategy=best_at(self._problem, gbs), reason=reason, details=details)


@dataclass(kw_only=True)
class CbsOptimistic(CbsPessimistic):
    """Nearest rung to c*GNS, never down, in the layout that is fastest at the largest batch."""

    name: ClassVar[str] = "cbs-optimistic"
    summary: ClassVar[str] = "gbs follows 2*GNS, never down; the layout best at the largest stays"

    def _planned_gbs(self, problem: Problem) -> int:
        return runnable_rungs(problem)[-1]


def nearest_rung(rungs: tuple[int, ...], gbs: float) -> int:
    """Return the rung at the smallest distance in samples; of two, the smaller."""
    return min(rungs, key=lambda rung: abs(rung - gbs))
