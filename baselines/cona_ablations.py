"""CONA with a part taken away: what its two choices, and the noise scale, are worth.

Each is the improved rule (`cona`) on a smaller question. The differences of the improved rule from
the paper's are parameters of `cona` itself (`cona-bias=off`, `-uncertainty=off`, `-cost=off`,
`-both=off`), and the paper's rule is `cona-paper`. Source: baselines.md 18.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from cona.controller import ImprovedRule
from cona.controller.narrow import best_at, runnable_rungs, with_layout, with_rungs
from cona.errors import ConfigError
from cona.gns import GnsEstimate
from cona.policy import Decision, Observation, Problem
from cona.specs import LrRule
from cona.strategy import Strategy

ALL_NOISE = GnsEstimate(num_terms=2, tr_sigma=1.0, mu_sq=0.0, var_xx=0.0, var_yy=0.0, var_xy=0.0)
"""An infinite noise scale, known exactly: then R is the ratio of throughputs."""


@dataclass(kw_only=True)
class CONAGbsOnly:
    """CONA in one layout: it chooses the batch size (and the micro-batch) only."""

    name: ClassVar[str] = "cona-gbs-only"
    kind: ClassVar[str] = "ablation"
    summary: ClassVar[str] = "CONA without choosing layouts: the one best at the smallest gbs stays"
    source: ClassVar[str] = "ablation of CONA (Kang et al. 2026)"

    layout_gbs: int | None = None
    """The batch size whose fastest layout is held, samples; None: the smallest that can run."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _rule: ImprovedRule = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fixed layout's fastest strategy of the smallest batch that it can run."""
        planned = runnable_rungs(problem)[0] if self.layout_gbs is None else self.layout_gbs
        self._rule = ImprovedRule(with_layout(problem, best_at(problem, planned).layout))
        return self._rule.start()

    def decide(self, observation: Observation) -> Decision:
        """Return the eligible strategy of the layout with the largest net gain, if any."""
        return self._rule.decide(observation)


@dataclass(kw_only=True)
class CONALayoutOnly:
    """CONA at one batch size: it only corrects its choice of layout by what it measures."""

    name: ClassVar[str] = "cona-layout-only"
    kind: ClassVar[str] = "ablation"
    summary: ClassVar[str] = "CONA without choosing batch sizes: -gbs<N> stays"
    source: ClassVar[str] = "ablation of CONA (Kang et al. 2026)"

    gbs: int
    """Global batch size, samples."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _rule: ImprovedRule = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the batch size."""
        if self.gbs not in problem.rungs:
            nearest = min(problem.rungs, key=lambda rung: abs(rung - self.gbs))
            raise ConfigError(
                f"cona-layout-only-gbs{self.gbs}: not on the ladder {list(problem.rungs)}; "
                f"nearest: {nearest}"
            )
        self._rule = ImprovedRule(with_rungs(problem, self.gbs, self.gbs))
        return self._rule.start()

    def decide(self, observation: Observation) -> Decision:
        """Return the eligible strategy of the batch size with the largest net gain, if any."""
        return self._rule.decide(observation)


@dataclass(kw_only=True)
class CONANoGns:
    """CONA that ignores gradient noise: it moves to the largest throughput."""

    name: ClassVar[str] = "cona-no-gns"
    kind: ClassVar[str] = "ablation"
    summary: ClassVar[str] = "CONA as if gradients were all noise: maximum throughput"
    source: ClassVar[str] = "ablation of CONA (Kang et al. 2026)"

    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _rule: ImprovedRule = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        self._rule = ImprovedRule(problem)
        return self._rule.start()

    def decide(self, observation: Observation) -> Decision:
        """Return the strategy with the largest net gain in samples per second, if any."""
        return self._rule.decide(replace(observation, gns=ALL_NOISE))
