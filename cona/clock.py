"""One clock with named buckets; on the modelled clock a second is T(s), never CPU time.

Source: method.md 7.
"""

from __future__ import annotations

from cona.cost import SwitchCost, TimeModel
from cona.cost.switch import PRESETS
from cona.specs import SwitchCostPreset
from cona.strategy import Strategy


class ModelledClock:
    """Accounts the time that a target cluster would need.

    Buckets: train, switch and eval; search and checkpoints cost no modelled time.

    Args:
        time_source: the reference time source, T(s) in seconds.
        switch_cost: the switch-cost model.
        preset: the switch-cost preset that the train clock is charged.
    """

    kind = "modelled"

    def __init__(
        self, time_source: TimeModel, switch_cost: SwitchCost, preset: SwitchCostPreset
    ) -> None:
        self.time_source, self.preset = time_source, preset
        self._switch_cost = switch_cost
        self.compute_s = 0.0
        self.eval_s = 0.0
        self.switch_s: dict[str, float] = dict.fromkeys(PRESETS, 0.0)

    @property
    def train_s(self) -> float:
        """Seconds of training and switching: the clock of TTP."""
        return self.compute_s + self.switch_s[self.preset]

    @property
    def wall_s(self) -> float:
        """Seconds of training, switching and evaluating."""
        return self.train_s + self.eval_s

    def add_evaluation(self, strategy: Strategy, num_samples: int) -> None:
        """Account an evaluation: the forward share of the iterations that would see its samples.

        ASSUMED: a quarter of T, as with full recomputation (forward, forward again, and a backward
        pass that costs two).
        """
        self.eval_s += num_samples / strategy.gbs * self.iteration_s(strategy) / 4

    def iteration_s(self, strategy: Strategy) -> float:
        """Return T(s) in seconds without accounting it."""
        return self.time_source.time_s(strategy)

    def origin(self, strategy: Strategy) -> str:
        """Return what T(s) is: "model", "measured" or "scaled model"."""
        return self.time_source.origin(strategy)

    def add_iteration(self, strategy: Strategy) -> float:
        """Account one iteration and return its seconds."""
        seconds = self.iteration_s(strategy)
        self.compute_s += seconds
        return seconds

    def switch_costs_s(self, old: Strategy, new: Strategy) -> dict[str, float]:
        """Return the seconds of a switch under every preset without accounting it."""
        return {str(p): s for p, s in self._switch_cost.all_presets(old, new).items()}

    def add_switch(self, costs_s: dict[str, float]) -> None:
        """Account the seconds of a switch, by preset."""
        for preset, seconds in costs_s.items():
            self.switch_s[preset] += seconds
