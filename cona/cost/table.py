"""The table clock: T(s) as it was measured, and from a model scaled to it where it was not.

Source: issue 3, item 5; architecture.md, Contracts (the reference time source may be a table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from cona.cost.base import TimeModel
from cona.cost.gpus import Floats
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques

PREFIX = "table:"
"""Begins the name of a time source that is a table; the path of its CSV follows."""

NUM_NEIGHBOURS = 4
"""ASSUMED: measured strategies whose ratio to the model scales it; more where distances tie."""

TIE = 1e-9
"""Relative difference of squared distances that rounding may make of equal ones."""

AXES = ("dp", "tp", "pp", "mbs", "gbs")
"""Dimensions of the space in which strategies are near: the logarithms of these."""


def table_path(time_source: str) -> Path | None:
    """Return the CSV that a time source's name refers to; None if it is not a table."""
    if not time_source.startswith(PREFIX):
        return None
    return Path(time_source.removeprefix(PREFIX))


class TimeTable:
    """A time model from measured iterations, completed by another model.

    A strategy that the table has takes its measured T. Any other takes the model's T times the
    weighted geometric mean of measured/model over its nearest measured strategies; the weight is
    the inverse square of the distance in log2(dp, tp, pp, mbs, gbs), and a technique that differs
    counts as much as a factor of two in a degree (ASSUMED).

    Args:
        name: name in configurations, tables and captions.
        measured_s: seconds per iteration by strategy; at least one.
        model: prices what the table lacks; measured strategies that it finds infeasible do not
            scale it.

    Raises:
        ConfigError: the table is empty, or a time is not above 0.
    """

    def __init__(self, name: str, measured_s: Mapping[Strategy, float], model: TimeModel) -> None:
        if not measured_s:
            raise ConfigError(f"{name}: no measured strategy; expected at least one")
        for strategy, seconds in measured_s.items():
            if not (np.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name}: {strategy} takes {seconds} s; a time must be above 0")
        self.name, self.model = name, model
        self.measured_s = dict(measured_s)
        known = [s for s in self.measured_s if model.why_not(s) is None]
        self._points = _coordinates(known)
        self._techniques = [s.techniques for s in known]
        measured = np.array([self.measured_s[s] for s in known], float)
        self._log_ratios = np.log(measured / model.times_s(known))
        self._factors: dict[Strategy, float] = {}
        self._differing: dict[Techniques, Floats] = {}

    def origin(self, strategy: Strategy) -> str:
        """Return "measured" where the table has the strategy, else "scaled model"."""
        return "measured" if strategy in self.measured_s else "scaled model"

    def why_not(self, strategy: Strategy) -> str | None:
        """Return the rule that makes a strategy infeasible, or None; what ran is feasible."""
        return None if strategy in self.measured_s else self.model.why_not(strategy)

    def time_s(self, strategy: Strategy) -> float:
        """Return T in seconds per iteration; raises ConfigError if the strategy is infeasible."""
        measured = self.measured_s.get(strategy)
        if measured is not None:
            return measured
        return self.model.time_s(strategy) * self._factor(strategy)

    def times_s(self, strategies: Sequence[Strategy]) -> Floats:
        """Return T of many strategies, shape [strategies], seconds; raises like ``time_s``."""
        lacking = [s for s in strategies if s not in self.measured_s]
        self.model.times_s(lacking)  # all at once, so that the look-ups below are cheap
        return np.array([self.time_s(s) for s in strategies], float)

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        """Return the model's parts in seconds, scaled alike so that they sum to T.

        A measured strategy that the model finds infeasible has one part, "measured".
        """
        total = self.time_s(strategy)
        if self.model.why_not(strategy) is not None:
            return {"measured": total}
        parts = self.model.breakdown(strategy)
        scale = total / sum(parts.values())
        return {part: seconds * scale for part, seconds in parts.items()}

    def _factor(self, strategy: Strategy) -> float:
        """By what the model's T is multiplied; 1 if the model knows none of the table's."""
        if not len(self._points):
            return 1.0
        if strategy not in self._factors:
            squared = self._squared_distances(strategy)
            last = min(NUM_NEIGHBOURS, len(squared)) - 1
            is_near = squared <= np.partition(squared, last)[last] * (1 + TIE)
            mean = np.average(self._log_ratios[is_near], weights=1 / squared[is_near])
            self._factors[strategy] = float(np.exp(mean))
        return self._factors[strategy]

    def _squared_distances(self, strategy: Strategy) -> Floats:
        """Squared distance to each known strategy; above 0, for the table lacks this one."""
        techniques = strategy.techniques
        if techniques not in self._differing:
            differing = [_num_differing(known, techniques) for known in self._techniques]
            self._differing[techniques] = np.array(differing, float)
        steps = self._points - _coordinates([strategy])
        squared: Floats = (steps**2).sum(axis=1) + self._differing[techniques]
        return squared


def _coordinates(strategies: Sequence[Strategy]) -> Floats:
    """Return log2 of the axes, shape [strategies, axes]."""
    rows = [[getattr(s, axis) for axis in AXES] for s in strategies]
    return np.log2(np.array(rows, float).reshape(len(rows), len(AXES)))


def _num_differing(one: Techniques, other: Techniques) -> int:
    return sum(getattr(one, f.name) != getattr(other, f.name) for f in fields(Techniques))
