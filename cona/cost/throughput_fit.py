"""The throughput model of Pollux, fitted to observed iterations. Source: baselines.md 11.

T = s*T_accum + (T_accum^g + T_net^g)^(1/g), T_accum = a + b*mbs, with s = m - 1 accumulation steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cona.cost.gpus import Floats
from cona.strategy import Strategy

OVERLAP_MAX = 10.0
"""Largest g: 10 is close to a maximum, that is to perfect overlap of computing and network."""

PRIOR_PENALTY = 1e-4
"""ASSUMED: weight of the squared distance to the prior (of log a, log b, log T_net, and g) beside
the squared log error; small, so that it only decides what the observations leave open."""

LARGEST_LOG = math.log(1e6)
"""ASSUMED: a, b and T_net stay within a millionth and a million times the prior."""

Configuration = tuple[int, int]
"""Micro-batch size and number of micro-batches."""


class StepTimes:
    """Observed seconds per iteration of one layout, and the model that explains them."""

    def __init__(self) -> None:
        self._log_sums: dict[Configuration, tuple[float, int]] = {}
        self._dp = 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing was observed: then there is nothing to fit."""
        return not self._log_sums

    def add(self, strategy: Strategy, iteration_s: float) -> None:
        """Add one observed iteration, seconds."""
        key = (strategy.mbs, strategy.num_microbatches)
        total, count = self._log_sums.get(key, (0.0, 0))
        self._log_sums[key] = (total + math.log(iteration_s), count + 1)
        self._dp = strategy.dp

    def fit(self) -> Callable[[Strategy], float]:
        """Return T in seconds as a function of a strategy of the layout.

        Each configuration counts once, by its mean log T. What one configuration cannot tell is
        the prior's: the first one's time is a third each a, b*mbs and T_net (a half each without
        replicas), which is optimistic about larger batches, so that they are explored.
        """
        # Imported here: listing policies must not pay for scipy.
        from scipy.optimize import minimize

        configurations = list(self._log_sums)
        mbs, num_microbatches = np.array(configurations, float).T
        logs = np.array([total / count for total, count in self._log_sums.values()])
        prior = self._prior(configurations[0], math.exp(logs[0]))
        start = np.array([0.0, 0.0, 0.0, 1.0])  # log a, log b, log T_net beside the prior's; g

        def loss(x: Floats) -> float:
            errors = np.log(step_s(prior * np.exp(x[:3]), x[3], mbs, num_microbatches)) - logs
            return float(np.mean(errors**2) + PRIOR_PENALTY * np.sum((x - start) ** 2))

        bounds = [(-LARGEST_LOG, LARGEST_LOG)] * 3 + [(1.0, OVERLAP_MAX)]
        x = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
        parameters, overlap = prior * np.exp(x[:3]), float(x[3])
        return lambda s: float(
            step_s(parameters, overlap, np.array(s.mbs), np.array(s.num_microbatches))
        )

    def _prior(self, first: Configuration, first_s: float) -> Floats:
        mbs, num_microbatches = first
        share_s = first_s / num_microbatches / (3 if self._dp > 1 else 2)
        return np.array([share_s, share_s / mbs, share_s if self._dp > 1 else 0.0])


def step_s(parameters: Floats, overlap: float, mbs: Floats, num_microbatches: Floats) -> Floats:
    """Return T in seconds.

    Args:
        parameters: a and T_net in seconds, b in seconds per sample, as [a, b, T_net].
        overlap: g, at least 1.
        mbs: micro-batch sizes, shape [configurations], samples.
        num_microbatches: micro-batches per iteration, shape [configurations].

    Source: Pollux (Qiao et al., OSDI 2021), section 3.2
    """
    accumulate_s = parameters[0] + parameters[1] * mbs
    # Scaled by the larger one: powers of small seconds would underflow.
    scale = np.maximum(accumulate_s, parameters[2])
    last_s = scale * ((accumulate_s / scale) ** overlap + (parameters[2] / scale) ** overlap) ** (
        1 / overlap
    )
    return (num_microbatches - 1) * accumulate_s + last_s
