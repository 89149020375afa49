"""Bias correction of a time model by what was measured. Source: method.md 3a."""

from __future__ import annotations

import math
import statistics

from cona.strategy import Layout, Strategy


class BiasCorrection:
    """Corrects modelled times by what was measured: T_model * exp((n_l*b_l + b)/(n_l + 1)).

    b_l is the mean log(T_meas/T_model) over the n_l stays in layout l, b the mean of b_l over the
    visited layouts. Source: method.md 3a.
    """

    def __init__(self) -> None:
        self._stays: dict[Layout, list[float]] = {}

    def begin(self, strategy: Strategy) -> None:
        """Open a stay in the strategy's layout."""
        self._stays.setdefault(strategy.layout, []).append(0.0)

    def update(self, strategy: Strategy, measured_s: float, modelled_s: float) -> None:
        """Replace the open stay's log ratio by that of its current median T, seconds."""
        self._stays[strategy.layout][-1] = math.log(measured_s / modelled_s)

    def factor(self, layout: Layout) -> float:
        """Return the factor by which modelled times of a layout are multiplied."""
        means = {known: statistics.fmean(logs) for known, logs in self._stays.items()}
        overall = statistics.fmean(means.values())
        visits = len(self._stays.get(layout, []))
        return math.exp((visits * means.get(layout, 0.0) + overall) / (visits + 1))
