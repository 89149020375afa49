"""The surrogate that ranks strategies: throughput times progress per sample.

Source: method.md 3. One step at batch B progresses B/(B + GNS) of a noiseless step, so
Phi = steps per second times progress per step, up to a constant.
"""

from __future__ import annotations

import math


def throughput(gbs: int, iteration_s: float) -> float:
    """Return samples per second at ``gbs`` samples and ``iteration_s`` seconds per iteration."""
    return gbs / iteration_s


def phi(gbs: int, iteration_s: float, gns: float) -> float:
    """Return Phi = throughput / (gbs + GNS), per second, for a GNS in samples."""
    return throughput(gbs, iteration_s) / (gbs + gns)


def ratio(
    gbs_cur: int, iteration_cur_s: float, gbs_next: int, iteration_next_s: float, inverse_gns: float
) -> float:
    """Return R = Phi(next)/Phi(cur); above 1 the next strategy progresses faster.

    Args:
        gbs_cur: samples per iteration of the current strategy.
        iteration_cur_s: its seconds per iteration.
        gbs_next: samples per iteration of the candidate.
        iteration_next_s: its seconds per iteration.
        inverse_gns: u = 1/GNS in 1/samples; 0 means infinitely noisy gradients.

    Source: method.md 3 (the form in u stays finite when mu_sq is not positive).
    """
    time_ratio = iteration_cur_s / iteration_next_s
    progress = (1 + gbs_cur * inverse_gns) / (1 + gbs_next * inverse_gns)
    return time_ratio * (gbs_next / gbs_cur) * progress


def crossing_gns(gbs_1: int, time_1_s: float, gbs_2: int, time_2_s: float) -> float:
    """Return GNS*, the noise scale in samples above which gbs_2 > gbs_1 has the larger Phi.

    Returns:
        0.0 if the larger batch always wins (it takes no longer), infinity if it never does.

    Source: method.md 3.
    """
    if time_2_s <= time_1_s:
        return 0.0
    gain = gbs_2 * time_1_s - gbs_1 * time_2_s
    if gain <= 0:
        return math.inf
    return gbs_1 * gbs_2 * (time_2_s - time_1_s) / gain
