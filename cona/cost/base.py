"""The contract of every time model, and what the analytical ones share.

Source: architecture.md, Contracts; cost-model.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cona.cost.gpus import Floats
from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy


class TimeModel(Protocol):
    """T(s): seconds per iteration of a strategy, for one model on one cluster."""

    name: str
    """Name in configurations, tables and captions."""

    def time_s(self, strategy: Strategy) -> float:
        """Return T in seconds per iteration; raises ConfigError if the strategy is infeasible."""

    def times_s(self, strategies: Sequence[Strategy]) -> Floats:
        """Return T of many strategies, shape [strategies], seconds; raises like ``time_s``."""

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        """Return the named parts of T in seconds; they sum to T."""

    def why_not(self, strategy: Strategy) -> str | None:
        """Return the rule that makes a strategy infeasible, or None."""

    def origin(self, strategy: Strategy) -> str:
        """Return what T of a strategy is: "model", or of a table "measured", "scaled model"."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Strategies as arrays, one entry each, all of shape [strategies]."""

    dp: Floats
    tp: Floats
    pp: Floats
    mbs: Floats
    num_microbatches: Floats

    @classmethod
    def of(cls, strategies: Sequence[Strategy]) -> Columns:
        """Turn strategies into columns; whole numbers stay exact in float64."""
        names = ("dp", "tp", "pp", "mbs", "num_microbatches")
        return cls(**{n: np.array([getattr(s, n) for s in strategies], float) for n in names})


class AnalyticalModel(ABC):
    """A time model from equations: computes all strategies at once and remembers each T."""

    name: str

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.model = model
        self.cluster = cluster
        self._known_s: dict[Strategy, float] = {}

    @abstractmethod
    def parts_s(self, columns: Columns) -> dict[str, Floats]:
        """Return the named parts of T, each of shape [strategies], in seconds."""

    @abstractmethod
    def broken_rule(self, strategy: Strategy) -> str | None:
        """Return the rule that a strategy breaks, or None."""

    def why_not(self, strategy: Strategy) -> str | None:
        """Return the rule that makes a strategy infeasible, or None."""
        return None if strategy in self._known_s else self.broken_rule(strategy)

    def origin(self, strategy: Strategy) -> str:
        """Return what T of a strategy is: never measured here."""
        return "model"

    def time_s(self, strategy: Strategy) -> float:
        """Return T in seconds per iteration; a dictionary look-up after the first call.

        Raises:
            ConfigError: the strategy is infeasible.
        """
        known = self._known_s.get(strategy)
        return float(self.times_s([strategy])[0]) if known is None else known

    def times_s(self, strategies: Sequence[Strategy]) -> Floats:
        """Return T of many strategies, shape [strategies], in seconds per iteration.

        Raises:
            ConfigError: one of them is infeasible; ask ``why_not`` first.
        """
        missing = [s for s in dict.fromkeys(strategies) if s not in self._known_s]
        if missing:
            total = sum(self._parts_s(missing).values(), np.zeros(len(missing)))
            self._known_s.update(zip(missing, total.tolist(), strict=True))
        return np.array([self._known_s[s] for s in strategies], float)

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        """Return the named parts of T in seconds; they sum to T.

        Raises:
            ConfigError: the strategy is infeasible.
        """
        return {name: float(part[0]) for name, part in self._parts_s([strategy]).items()}

    def _parts_s(self, strategies: Sequence[Strategy]) -> dict[str, Floats]:
        for strategy in strategies:
            if rule := self.why_not(strategy):
                raise ConfigError(f"{strategy} is infeasible: {rule}")
        return self.parts_s(Columns.of(strategies))
