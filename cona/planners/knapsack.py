"""One strategy for every layer of a stage within a memory budget, by exact dynamic programming.

    F_l[w, k] = time[l, k] + min_k' ( F_{l-1}[w - units[l, k], k'] + relayout[k', k] )

Source: Galvatron (Miao et al. 2023), section 3.3; strategies that lay activations out alike form a
group, so that the minimum over k' is taken once per pair of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cona.cost.gpus import Floats

Ints = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.signedinteger]  # small integers: tables are long


@dataclass(frozen=True, kw_only=True)
class Knapsack:
    """The question: which strategy each layer takes."""

    seconds: Floats
    """Time of every layer under every strategy, shape [layers, strategies]."""
    units: Ints
    """Memory of the same, whole units of at least 0, shape [layers, strategies]."""
    groups: Sequence[int]
    """Group of every strategy: how it lays out activations."""
    relayout_s: Floats
    """Seconds between two layers, by their groups, shape [groups, groups]."""

    def best(self, budget: int) -> tuple[int, ...] | None:
        """Return each layer's strategy so that total time is least; None: nothing fits.

        Args:
            budget: units of memory for all layers together.
        """
        free = self.units.min(axis=1).sum()
        if budget < free:
            return None
        if budget >= self.units.max(axis=1).sum():
            return self._walk(0, np.zeros_like(self.units))
        slack = int(budget - free)  # tables need no more memory than what there is to choose
        return self._walk(slack, self.units - self.units.min(axis=1, keepdims=True))

    def _walk(self, budget: int, units: Ints) -> tuple[int, ...]:
        """Fill the tables forward, and read the choices backward."""
        known = ends = np.zeros((len(self.relayout_s), budget + 1))
        choices: list[tuple[Chosen, Chosen]] = []
        for layer in range(len(self.seconds)):
            ends, strategy = self._layer(known, layer, units[layer])
            ways = ends[:, None, :] + self.relayout_s[:, :, None]  # [from, to, budget]
            choices.append((strategy, ways.argmin(axis=0).astype(np.int8)))
            known = ways.min(axis=0)
        return self._read(ends, choices, units, budget)

    def _layer(self, known: Floats, layer: int, units: Ints) -> tuple[Floats, Chosen]:
        """Cheapest time that ends in each group, and its strategy, for every budget."""
        ends = np.full(known.shape, np.inf)
        chosen = np.zeros(known.shape, np.int16)
        for index, group in enumerate(self.groups):
            size = int(units[index])
            if size >= known.shape[1]:
                continue
            times = np.full(known.shape[1], np.inf)
            times[size:] = known[group, : known.shape[1] - size] + self.seconds[layer, index]
            is_less = times < ends[group]
            ends[group] = np.where(is_less, times, ends[group])
            chosen[group] = np.where(is_less, index, chosen[group])
        return ends, chosen

    def _read(
        self, last: Floats, choices: list[tuple[Chosen, Chosen]], units: Ints, budget: int
    ) -> tuple[int, ...]:
        group, left = int(last[:, budget].argmin()), budget
        found: list[int] = []
        for layer in range(len(choices) - 1, -1, -1):
            if found:
                group = int(choices[layer][1][group, left])
            index = int(choices[layer][0][group, left])
            found.insert(0, index)
            left -= int(units[layer, index])
        return tuple(found)
