"""One clock with named buckets: modelled seconds of a target cluster, or wall seconds of ranks.

Source: method.md 7.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from typing import Any, Protocol

from cona.cost import SwitchCost, TimeModel
from cona.cost.switch import PRESETS
from cona.specs import ClockKind, SwitchCostPreset
from cona.strategy import Strategy

WINDOW = 50
"""ASSUMED: T of a strategy is expected to be the median of this many last iterations."""


class Clock(Protocol):
    """What a run's seconds are; buckets: train, switch, eval.

    Searches and checkpoints cost no time of TTP; those seconds are reported beside the clock.
    """

    kind: ClockKind
    preset: str
    """Key of ``switch_s`` that the train clock is charged."""
    compute_s: float
    """Seconds of training."""
    eval_s: float
    """Seconds of evaluating."""
    switch_s: dict[str, float]
    """Seconds of switching, by what they are called."""

    @property
    def train_s(self) -> float:
        """Seconds of training and switching: the clock of TTP."""

    @property
    def wall_s(self) -> float:
        """Seconds of training, switching and evaluating."""

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json says about the clock."""

    def iteration_s(self, strategy: Strategy) -> float:
        """Return the expected seconds of one iteration without accounting it."""

    def origin(self, strategy: Strategy) -> str:
        """Return what T of a strategy is: model, measured or scaled model."""

    def add_iteration(
        self, strategy: Strategy, measured_s: float | None, *, is_warmup: bool
    ) -> float:
        """Account an iteration and return its seconds; measured_s is None if nobody measured."""

    def add_evaluation(
        self, strategy: Strategy, num_samples: int, measured_s: float | None
    ) -> None:
        """Account an evaluation of ``num_samples`` samples."""

    def switch_costs_s(self, old: Strategy, new: Strategy) -> dict[str, float]:
        """Return the expected seconds of a switch, by name, without accounting it."""

    def add_switch(self, costs_s: dict[str, float], measured_s: float | None) -> dict[str, float]:
        """Account a switch and return its seconds by name; ``costs_s`` is what was expected."""


class _Buckets:
    """Sums that both clocks keep."""

    preset: str

    def __init__(self, *names: str) -> None:
        self.compute_s = 0.0
        self.eval_s = 0.0
        self.switch_s: dict[str, float] = dict.fromkeys(names, 0.0)

    @property
    def train_s(self) -> float:
        """Seconds of training and switching: the clock of TTP."""
        return self.compute_s + self.switch_s[self.preset]

    @property
    def wall_s(self) -> float:
        """Seconds of training, switching and evaluating."""
        return self.train_s + self.eval_s


class ModelledClock(_Buckets):
    """Accounts the time that a target cluster would need, never CPU time.

    Args:
        time_source: the reference time source, T(s) in seconds.
        switch_cost: the switch-cost model.
        preset: the switch-cost preset that the train clock is charged.
    """

    kind: ClockKind = "modelled"

    def __init__(
        self, time_source: TimeModel, switch_cost: SwitchCost, preset: SwitchCostPreset
    ) -> None:
        super().__init__(*PRESETS)
        self.time_source, self.preset = time_source, preset
        self._switch_cost = switch_cost

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json says about the clock."""
        return {
            "kind": self.kind,
            "time_source": self.time_source.name,
            "switch_cost": self.preset,
            "cluster": self._switch_cost.cluster.name,
            "priced_as": self._switch_cost.model.name,
            "unit": "modelled seconds",
        }

    def iteration_s(self, strategy: Strategy) -> float:
        """Return T(s) in seconds without accounting it."""
        return self.time_source.time_s(strategy)

    def origin(self, strategy: Strategy) -> str:
        """Return what T(s) is: "model", "measured" or "scaled model"."""
        return self.time_source.origin(strategy)

    def add_iteration(
        self, strategy: Strategy, measured_s: float | None = None, *, is_warmup: bool = False
    ) -> float:
        """Account T(s), whatever the iteration really took, and return it in seconds."""
        seconds = self.iteration_s(strategy)
        self.compute_s += seconds
        return seconds

    def add_evaluation(
        self, strategy: Strategy, num_samples: int, measured_s: float | None = None
    ) -> None:
        """Account an evaluation: the forward share of the iterations that would see its samples.

        ASSUMED: a quarter of T, as with full recomputation (forward, forward again, and a backward
        pass that costs two).
        """
        self.eval_s += num_samples / strategy.gbs * self.iteration_s(strategy) / 4

    def switch_costs_s(self, old: Strategy, new: Strategy) -> dict[str, float]:
        """Return the seconds of a switch under every preset without accounting it."""
        return {str(p): s for p, s in self._switch_cost.all_presets(old, new).items()}

    def add_switch(
        self, costs_s: dict[str, float], measured_s: float | None = None
    ) -> dict[str, float]:
        """Account the seconds of a switch, by preset, and return them."""
        for preset, seconds in costs_s.items():
            self.switch_s[preset] += seconds
        return costs_s


class MeasuredClock(_Buckets):
    """Accounts the wall seconds of the ranks that execute the run.

    Args:
        facts: what executes it: cluster, model and hardware.
    """

    kind: ClockKind = "measured"
    preset = "measured"

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(self.preset)
        self._facts = facts
        self._times_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._switches_s: list[float] = []

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json says about the clock."""
        same = dict.fromkeys(("kind", "time_source", "switch_cost"), self.kind)
        return {**same, **self._facts, "unit": "seconds"}

    def iteration_s(self, strategy: Strategy) -> float:
        """Return the median of the strategy's last iterations, seconds; 0 before the first.

        An unknown strategy is hence tried while any time is left: a run can exceed its budget by
        one iteration.
        """
        times_s = self._times_s.get(str(strategy))
        return statistics.median(times_s) if times_s else 0.0

    def origin(self, strategy: Strategy) -> str:
        """Return what T is: always measured."""
        return self.kind

    def add_iteration(
        self, strategy: Strategy, measured_s: float | None, *, is_warmup: bool
    ) -> float:
        """Account the seconds of an iteration; one of the warm-up tells nothing about T."""
        seconds = _measured(measured_s)
        self.compute_s += seconds
        if not is_warmup:
            self._times_s[str(strategy)].append(seconds)
        return seconds

    def add_evaluation(
        self, strategy: Strategy, num_samples: int, measured_s: float | None
    ) -> None:
        """Account the seconds of an evaluation."""
        self.eval_s += _measured(measured_s)

    def switch_costs_s(self, old: Strategy, new: Strategy) -> dict[str, float]:
        """Return the mean of the switches so far, seconds; 0 without any, or in one layout."""
        known = old.layout != new.layout and self._switches_s
        return {self.preset: statistics.fmean(self._switches_s) if known else 0.0}

    def add_switch(self, costs_s: dict[str, float], measured_s: float | None) -> dict[str, float]:
        """Account the seconds that a switch took; None: it changed no layout and took none."""
        if measured_s is not None:
            self._switches_s.append(measured_s)
        seconds = measured_s or 0.0
        self.switch_s[self.preset] += seconds
        return {self.preset: seconds}


def _measured(seconds: float | None) -> float:
    if seconds is None:
        raise TypeError("the measured clock was shown something that nobody measured")
    return seconds
