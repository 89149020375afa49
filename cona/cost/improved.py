"""The `improved` time model: the vectorised core behind the contract of every time model.

Source: cost-model.md, what the `improved` model adds
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cona.cost.constants import Calibration, load
from cona.cost.gpus import Floats
from cona.cost.inputs import inputs
from cona.cost.predictions import Predictions, predict, reason
from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy


class Improved:
    """T(s) and M(s) of one model on one cluster, with the calibration of its GPU type."""

    name = "improved"

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        *,
        calibration: Calibration | None = None,
        profile: str = "tuned",
    ) -> None:
        """Bind model and cluster.

        Args:
            model: the model that is priced.
            cluster: the target cluster.
            calibration: constants; None: those shipped for the cluster's GPU type.
            profile: software stack, one of ``cona.cost.constants.PROFILES``.
        """
        self.model = model
        self.cluster = cluster
        self.profile = profile
        self.calibration = calibration or load(cluster.gpu)
        self._known: dict[Strategy, tuple[float, str | None]] = {}

    def predict(self, strategies: Sequence[Strategy]) -> Predictions:
        """Return time, memory and feasibility of strategies, a row each."""
        return predict(inputs(self.model, self.cluster, strategies, self.profile), self.calibration)

    def time_s(self, strategy: Strategy) -> float:
        """Return T in seconds per iteration; raises ConfigError if the strategy is infeasible."""
        return float(self.times_s([strategy])[0])

    def times_s(self, strategies: Sequence[Strategy]) -> Floats:
        """Return T of many strategies, shape [strategies], seconds; raises like ``time_s``."""
        self._learn(strategies)
        for strategy in strategies:
            if rule := self._known[strategy][1]:
                raise ConfigError(f"{strategy} is infeasible: {rule}")
        return np.array([self._known[s][0] for s in strategies], float)

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        """Return the named parts of T in seconds; they sum to T; raises like ``time_s``."""
        self.time_s(strategy)
        return {name: float(part[0]) for name, part in self.predict([strategy]).parts.items()}

    def memory_bytes(self, strategy: Strategy) -> float:
        """Return M: bytes on the fullest GPU, also of a strategy that does not fit."""
        return float(self.predict([strategy]).memory_bytes[0])

    def memory_breakdown(self, strategy: Strategy) -> dict[str, float]:
        """Return the named parts of M in bytes; they sum to M."""
        parts = self.predict([strategy]).memory_parts
        return {name: float(part[0]) for name, part in parts.items()}

    def why_not(self, strategy: Strategy) -> str | None:
        """Return the rule that makes a strategy infeasible, or None."""
        self._learn([strategy])
        return self._known[strategy][1]

    def origin(self, strategy: Strategy) -> str:
        """Return what T of a strategy is: never measured here."""
        return "model"

    def _learn(self, strategies: Sequence[Strategy]) -> None:
        """Remember T, and the broken rule, of strategies that were not asked for before."""
        missing = [s for s in dict.fromkeys(strategies) if s not in self._known]
        if not missing:
            return
        rows = inputs(self.model, self.cluster, missing, self.profile)
        found = predict(rows, self.calibration)
        times, rules = found.time_s.tolist(), found.rule.tolist()
        for row, strategy in enumerate(missing):
            rule = reason(rows, found, row) if rules[row] else None
            self._known[strategy] = (times[row], rule)
