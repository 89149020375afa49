"""What a change of layout costs on the clock, under three presets.

Source: method.md 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from cona.cost.state import BYTES_PER_PARAM, lacking_params
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec, ModelSpec, SwitchCostPreset
from cona.strategy import Layout, Strategy

PRESETS: tuple[SwitchCostPreset, ...] = get_args(SwitchCostPreset)

LIVE_FIXED_S = 0.5
"""ASSUMED: seconds to regroup ranks and rebuild buffers, whatever the size."""

RESTART_S = 26.0 + 2 * 6.0
"""Checkpoint, convert and start again: 26 s is the middle of 20-32 s measured for a DeepSpeed
universal checkpoint of 97.7M parameters on 4 CPU ranks, plus twice 6 s of imports when the
processes come back. A lower bound for 1B parameters, whose state is more than ten times larger."""


@dataclass(frozen=True)
class SwitchCost:
    """Seconds of a switch of strategy; 0 while dp, tp and pp stay as they are."""

    model: ModelSpec
    """Whose state moves."""
    cluster: ClusterSpec
    """Over whose links."""
    _live_s: dict[tuple[Layout, Layout], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def seconds(
        self, from_strategy: Strategy, to_strategy: Strategy, preset: SwitchCostPreset
    ) -> float:
        """Return the seconds that a switch is charged.

        Args:
            from_strategy: in force before.
            to_strategy: in force after; only its layout matters.
            preset: ``live`` (state moves between GPUs), ``restart`` (a constant) or ``zero``.

        Raises:
            ConfigError: no such preset, or the switch changes the number of GPUs.

        Source: method.md 7
        """
        if preset not in PRESETS:
            raise ConfigError(f"unknown switch-cost preset '{preset}': {nearest(preset, PRESETS)}")
        old, new = from_strategy.layout, to_strategy.layout
        if old.num_gpus != new.num_gpus:
            raise ConfigError(
                f"a switch from {old} to {new} changes the number of GPUs from "
                f"{old.num_gpus} to {new.num_gpus}; it must stay {old.num_gpus}"
            )
        if old == new or preset == "zero":
            return 0.0
        return RESTART_S if preset == "restart" else self._live(old, new)

    def all_presets(
        self, from_strategy: Strategy, to_strategy: Strategy
    ) -> dict[SwitchCostPreset, float]:
        """Return the seconds of a switch under every preset."""
        return {p: self.seconds(from_strategy, to_strategy, p) for p in PRESETS}

    def lacking_bytes(self, old: Layout, new: Layout) -> float:
        """Return the most bytes of its new shard that any rank did not hold before."""
        ranks = range(new.num_gpus)
        return BYTES_PER_PARAM * max(lacking_params(r, old, new, self.model) for r in ranks)

    def _live(self, old: Layout, new: Layout) -> float:
        """Fixed seconds plus the neediest rank's bytes over the cluster's slowest link."""
        if (old, new) not in self._live_s:
            rate = self._slowest_link_bytes_per_s()
            self._live_s[old, new] = LIVE_FIXED_S + self.lacking_bytes(old, new) / rate
        return self._live_s[old, new]

    def _slowest_link_bytes_per_s(self) -> float:
        links = [self.cluster.intra_node] if self.cluster.gpus_per_node > 1 else []
        if self.cluster.num_nodes > 1 or not links:
            links.append(self.cluster.inter_node)
        return min(link.bandwidth_gb_s * 1e9 * link.efficiency for link in links)
