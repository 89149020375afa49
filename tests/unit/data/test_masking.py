from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from cona.data.counter import Purpose
from cona.data.masking import mask
from cona.data.tokenizer import Vocabulary
from cona.engine.base import Batch
from cona.errors import DataError

VOCABULARY = Vocabulary(vocab_size=1000, end_id=3, mask_id=4, special_ids=(0, 1, 2, 3, 4))
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40)
WINDOWS = hnp.arrays(np.int64, SHAPES, elements=st.integers(0, 30))


def masked(windows: NDArray[np.int64], first: int = 0, seed: int = 0) -> Batch:
    indices = np.arange(first, first + len(windows))
    return mask(windows, indices, vocabulary=VOCABULARY, purpose=Purpose.TRAINING_MASKS, seed=seed)


@given(WINDOWS, st.integers(0, 2**40), st.integers(0, 99))
def test_masks_obey_the_rules(windows: NDArray[np.int64], first: int, seed: int) -> None:
    batch = masked(windows, first, seed)
    ordinary = (windows > 4).sum(axis=1)
    predicted = batch.loss_mask.sum(axis=1)
    assert np.array_equal(batch.labels, windows)
    assert predicted.tolist() == [max(1, round(0.15 * int(n))) for n in ordinary]
    # Special tokens are predicted only where a sample has nothing else, and never in training text.
    assert (windows[batch.loss_mask & (ordinary > 0)[:, None]] > 4).all()
    assert np.array_equal(batch.tokens[~batch.loss_mask], windows[~batch.loss_mask])
    inputs = batch.tokens[batch.loss_mask & (ordinary > 0)[:, None]]
    assert ((inputs >= 4) & (inputs < 1000)).all()


@given(WINDOWS, st.integers(1, 40))
def test_masks_do_not_depend_on_the_batch(windows: NDArray[np.int64], cut: int) -> None:
    whole = masked(windows)
    parts = [masked(windows[:cut])]
    if cut < len(windows):
        parts.append(masked(windows[cut:], first=cut))
    assert np.array_equal(whole.tokens, np.concatenate([part.tokens for part in parts]))
    assert np.array_equal(whole.loss_mask, np.concatenate([part.loss_mask for part in parts]))


def test_shares_of_hidden_random_and_unchanged() -> None:
    windows = np.full((4000, 100), 7)
    batch = masked(windows)
    assert (batch.loss_mask.sum(axis=1) == 15).all()
    inputs = batch.tokens[batch.loss_mask]
    num_predicted = 60_000
    hidden, unchanged = (inputs == 4).sum(), (inputs == 7).sum()
    others = inputs[(inputs != 4) & (inputs != 7)]
    assert hidden / num_predicted == pytest.approx(0.8, abs=0.01)
    assert unchanged / num_predicted == pytest.approx(0.1 + 0.1 / 995, abs=0.005)
    assert len(others) / num_predicted == pytest.approx(0.1, abs=0.005)
    # Random tokens come from all ordinary ids: 6,000 draws over 995 values.
    assert set(others.tolist()) <= set(range(5, 1000))
    assert len(set(others.tolist())) > 950
    assert others.mean() == pytest.approx(502, abs=15)


def test_every_position_is_chosen_equally_often() -> None:
    counts = masked(np.full((4000, 20), 7)).loss_mask.sum(axis=0)
    assert counts.sum() == 4000 * 3
    assert abs(counts - 600).max() < 120  # 5 standard deviations of 23


def test_seed_sample_and_purpose_change_the_mask() -> None:
    windows = np.full((1, 200), 7)
    masks = [
        mask(windows, np.array([i]), vocabulary=VOCABULARY, purpose=purpose, seed=seed).loss_mask
        for purpose in (Purpose.TRAINING_MASKS, Purpose.EVALUATION_MASKS)
        for seed in (0, 1)
        for i in (0, 1)
    ]
    assert len({m.tobytes() for m in masks}) == 8


def test_a_causal_vocabulary_cannot_be_masked() -> None:
    causal = Vocabulary(vocab_size=10, end_id=0, mask_id=None, special_ids=(0,))
    with pytest.raises(DataError, match="needs a tokenizer with a mask token"):
        mask(
            np.ones((1, 4), np.int64),
            np.array([0]),
            vocabulary=causal,
            purpose=Purpose.TRAINING_MASKS,
            seed=0,
        )
