"""Samples: which windows of the token stream an iteration or an evaluation sees.

The order is a pure function of (seed, consumed samples), so neither the batch size nor a resume
can change it. Source: method.md 7; architecture.md, The house.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cona.data.counter import Purpose, random_bits
from cona.data.masking import mask
from cona.data.prepared import PreparedData
from cona.engine.base import Batch
from cona.errors import DataError


class TrainingSamples:
    """The endless sequence of training samples of one seed."""

    def __init__(self, prepared: PreparedData, seed: int) -> None:
        """Keep the data and the seed; there is no other state.

        Args:
            prepared: tokens of the corpus.
            seed: of the order and of BERT's masks.

        Raises:
            DataError: the seed is negative.
        """
        if seed < 0:
            raise DataError(f"seed {seed} is negative; smallest: 0")
        self._prepared = prepared
        self._windows = prepared.windows("train")
        self._seed = seed

    @property
    def epoch_samples(self) -> int:
        """Samples after which every window of the train split was seen once more."""
        return len(self._windows)

    def batch(self, first_sample: int, count: int) -> Batch:
        """Return consecutive samples.

        Args:
            first_sample: samples consumed before; the same value always gives the same sample.
            count: samples to return.

        Returns:
            A batch of [count, seq].
        """
        samples = np.arange(first_sample, first_sample + count)
        epochs, positions = np.divmod(samples, self.epoch_samples)
        rows = np.empty_like(samples)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            rows[inside] = _order(self._seed, int(epoch), self.epoch_samples)[positions[inside]]
        windows = self._windows[rows].astype(np.int64)
        return _batch(self._prepared, windows, samples, Purpose.TRAINING_MASKS, self._seed)


class EvaluationSamples:
    """A fixed set of windows, spread evenly over a split, the same for every seed."""

    def __init__(self, prepared: PreparedData, split: str, num_samples: int) -> None:
        """Choose the windows.

        Args:
            prepared: tokens of the corpus.
            split: valid for the evaluation (TTP) set, probe for the oracle's.
            num_samples: windows to choose.

        Raises:
            DataError: no such split, or it has fewer windows.
        """
        windows = prepared.windows(split)
        if not 1 <= num_samples <= len(windows):
            raise DataError(
                f"split '{split}' has {len(windows)} windows of {windows.shape[1]} tokens, "
                f"{num_samples} were asked for; nearest: {len(windows) if num_samples > 0 else 1}"
            )
        self._prepared = prepared
        # The middle of each of num_samples equal stretches.
        self._rows = (2 * np.arange(num_samples) + 1) * len(windows) // (2 * num_samples)
        self._windows = windows[self._rows].astype(np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield the set in order; the last batch may be smaller.

        Args:
            batch_size: samples per batch; it changes no sample and no mask.
        """
        for start in range(0, len(self), batch_size):
            part = slice(start, start + batch_size)
            windows, rows = self._windows[part], self._rows[part]
            yield _batch(self._prepared, windows, rows, Purpose.EVALUATION_MASKS, seed=0)

    @property
    def num_bytes(self) -> int | None:
        """UTF-8 bytes of the predicted tokens, for bits per byte; None for BERT."""
        if self._prepared.token_bytes is None:
            return None
        return int(self._prepared.token_bytes[self._windows[:, 1:]].sum())


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, num_windows: int) -> NDArray[np.int64]:
    """Return the permutation of an epoch; shape [num_windows]."""
    return np.argsort(random_bits(Purpose.ORDER, seed, epoch, num_windows), kind="stable")


def _batch(
    prepared: PreparedData,
    windows: NDArray[np.int64],
    indices: NDArray[np.int64],
    purpose: Purpose,
    seed: int,
) -> Batch:
    if not prepared.is_causal:
        return mask(windows, indices, vocabulary=prepared.vocabulary, purpose=purpose, seed=seed)
    tokens, labels = windows[:, :-1], windows[:, 1:]
    return Batch(tokens=tokens, labels=labels, loss_mask=np.ones(labels.shape, np.bool_))
