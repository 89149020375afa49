"""CONA: ranks strategies online by throughput and gradient noise, and switches.

Kang et al., EMNLP 2026 (arXiv 2609.07236). The rules themselves are in `cona.controller`; the
search inside one batch size is exhaustive and exact (`cona.search`), or the paper's (`cona.bo`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cona.controller import ImprovedRule, PaperRule, RuleSwitches
from cona.controller.rungs import SearchKind, rung_search
from cona.errors import ConfigError
from cona.policy import Decision, Observation, Problem
from cona.specs import EngineKind, LrRule
from cona.strategy import Strategy


@dataclass(kw_only=True)
class CONA:
    """CONA with this project's improvements; each parameter is an ablation."""

    name: ClassVar[str] = "cona"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = "CONA with bias correction, significance, switch costs, both ways"
    source: ClassVar[str] = "CONA (Kang et al. 2026), method.md 3 improved"

    z: float | None = None
    """Standard errors that a gain must exceed; None: the tier's."""
    bias: bool = True
    """a. Correct modelled times by measured ones."""
    uncertainty: bool = True
    """b. Switch only on a significant gain."""
    cost: bool = True
    """c. Weigh the gain against the switch cost."""
    both: bool = True
    """d. Consider smaller batches and other layouts too."""
    noise: float = 1.0
    """Believe in a GNS of this many times the measured one: what a wrong GNS would cost."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that it plans with; None: the tier's."""
    _rule: ImprovedRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            raise ConfigError(
                f"cona-noise{self.noise:g}: must be positive and finite; nearest: cona-noise1"
            )

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        switches = RuleSwitches(
            bias_correction=self.bias,
            uncertainty=self.uncertainty,
            cost=self.cost,
            both_directions=self.both,
        )
        self._rule = ImprovedRule(problem, z=self.z, switches=switches)
        return self._rule.start()

    def decide(self, observation: Observation) -> Decision:
        """Return the eligible strategy with the largest net gain, if any."""
        believed = observation.gns if self.noise == 1 else observation.gns.scaled(self.noise)
        return self._rule.decide(replace(observation, gns=believed))


@dataclass(kw_only=True)
class CONAPaper:
    """CONA as in the paper; its search inside one batch size, Bayesian optimisation, is chosen."""

    name: ClassVar[str] = "cona-paper"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = "CONA as in the paper: next larger batch when R > 1"
    source: ClassVar[str] = "CONA (Kang et al. 2026), method.md 3 paper"

    fallback: bool = False
    """Step back when the smoothed GNS keeps falling (off by default, as in the release)."""
    search: SearchKind = "exhaustive"
    """Inside one batch size: exhaustive and exact, or bo, one evaluation per iteration."""
    search_seed: int = 0
    """Seed of the first points of bo."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = "calculon"
    """Time model that it plans with, the paper's; None: the tier's."""
    engine: EngineKind | None = None
    """Measured clock: engine that trains; None: the tier's. The paper's is deepspeed."""
    _rule: PaperRule = field(init=False, repr=False)

    @property
    def search_s(self) -> float:
        """Wall-clock seconds of searching so far."""
        return self._rule.search.search_s

    def start(self, problem: Problem) -> Strategy:
        """Return the fastest strategy that the search finds for the smallest batch."""
        search = rung_search(problem, self.search, seed=self.search_seed)
        self._rule = PaperRule(problem, fallback=self.fallback, search=search)
        return self._rule.start()

    def decide(self, observation: Observation) -> Decision:
        """Return the next larger batch's fastest strategy when R > 1."""
        return self._rule.decide(observation)
