"""Search inside one global batch size: exhaustive, exact.

Source: method.md 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cona.cost import TimeModel
from cona.errors import ConfigError
from cona.strategy import Strategy


def best(strategies: Sequence[Strategy], time_model: TimeModel) -> tuple[Strategy, float]:
    """Return the feasible strategy with the smallest T, and its T in seconds per iteration.

    Args:
        strategies: candidates; on a tie the earlier one wins.
        time_model: what T is, and which strategies are feasible.

    Raises:
        ConfigError: no candidate is feasible.

    Source: method.md 4, `exhaustive`
    """
    feasible = [s for s in strategies if time_model.why_not(s) is None]
    if not feasible:
        raise ConfigError(_none_feasible(strategies, time_model))
    times_s = time_model.times_s(feasible)
    winner = int(np.argmin(times_s))
    return feasible[winner], float(times_s[winner])


def _none_feasible(strategies: Sequence[Strategy], time_model: TimeModel) -> str:
    if not strategies:
        return "no strategy to choose from: no layout of the GPUs divides the model and the gbs"
    closest = min(strategies, key=getattr(time_model, "memory_bytes", _alike))
    return (
        f"none of {len(strategies)} strategies is feasible under {time_model.name}; closest was "
        f"{closest}: {time_model.why_not(closest)}"
    )


def _alike(strategy: Strategy) -> float:
    """Of a time model without memory the first strategy is named."""
    return 0.0
