"""Random numbers that are a pure function of what they are for: no generator carries a state."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Each purpose has its own part of the counter space, so that no two share numbers."""

    ORDER = 1
    """Order of the samples within an epoch, keyed by (seed, epoch)."""
    TRAINING_MASKS = 2
    """Masks of a training sample, keyed by (seed, sample)."""
    EVALUATION_MASKS = 3
    """Masks of an evaluation window, keyed by (0, window)."""


def random_bits(purpose: Purpose, seed: int, index: int, count: int) -> NDArray[np.uint64]:
    """Return uniform 64-bit integers; shape [count].

    Philox's raw output is fixed by its definition; numpy's distributions and permutations are
    not, and may change between versions.

    Args:
        purpose: what the numbers are for.
        seed: of the run, at least 0.
        index: of the sample, window or epoch, at least 0.
        count: how many.
    """
    key = np.array([seed, index], np.uint64)
    counter = np.array([0, 0, 0, purpose], np.uint64)
    bits: NDArray[np.uint64] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return bits


def uniforms(purpose: Purpose, seed: int, index: int, count: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) with 53 random bits; arguments as in ``random_bits``."""
    mantissas = random_bits(purpose, seed, index, count) >> np.uint64(11)
    return mantissas.astype(np.float64) * 2.0**-53
