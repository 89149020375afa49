"""Centres and intervals over seeds; an unreached target is a state, never a number.

Source: method.md 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

CONFIDENCE = 0.95
"""Coverage of every t interval."""
MIN_FOR_INTERVAL = 3
"""Fewest seeds that get an interval."""


def median_reached(values: Sequence[float | None]) -> float | None:
    """Return the median where None is slower than every number.

    Args:
        values: seconds by seed; None for a seed that did not reach the target.

    Returns:
        The median in seconds; None if it would need an unreached value.
    """
    middle = median(math.inf if v is None else v for v in values) if values else math.inf
    return middle if math.isfinite(middle) else None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers: that of products is the product of those."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def log_t_interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """Return the t interval of the geometric mean of paired ratios.

    Args:
        ratios: one positive ratio for each seed.

    Returns:
        Lower and upper end; None with fewer than three seeds.
    """
    count = len(ratios)
    if count < MIN_FOR_INTERVAL:
        return None
    from scipy.stats import t

    logs = [math.log(r) for r in ratios]
    mean = math.fsum(logs) / count
    variance = math.fsum((x - mean) ** 2 for x in logs) / (count - 1)
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance / count)
    return math.exp(mean - half), math.exp(mean + half)
