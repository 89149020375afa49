"""BERT's masked tokens: 15 % are predicted; of these 80 % are hidden and 10 % are replaced.

Source: method.md 7; Devlin et al. 2019, section 3.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cona.data.counter import Purpose, uniforms
from cona.data.tokenizer import Vocabulary
from cona.engine.base import Batch
from cona.errors import DataError

PREDICTED_FRACTION = 0.15
"""Of a sample's ordinary tokens."""
HIDDEN_FRACTION = 0.8
"""Of the predicted tokens: the input is the mask token."""
RANDOM_FRACTION = 0.1
"""Of the predicted tokens: the input is a random ordinary token; the rest is left as it is."""


def mask(
    windows: NDArray[np.int64],
    indices: NDArray[np.int64],
    *,
    vocabulary: Vocabulary,
    purpose: Purpose,
    seed: int,
) -> Batch:
    """Hide tokens of each sample, as a pure function of (purpose, seed, index, tokens).

    Each sample predicts max(1, round(15 % of its ordinary tokens)), never a special token; only a
    sample that holds nothing else predicts one of those, so that no loss is over zero tokens.

    Args:
        windows: token ids, shape [samples, seq].
        indices: what the random numbers of each sample are keyed by, shape [samples].
        vocabulary: with a mask token.
        purpose: training or evaluation.
        seed: of the run; 0 for evaluation.

    Raises:
        DataError: the tokenizer has no mask token.
    """
    if vocabulary.mask_id is None:
        raise DataError(
            "masking needs a tokenizer with a mask token; valid: a model of family bert"
        )
    count = 3 * windows.shape[1]
    draws = np.stack([uniforms(purpose, seed, int(i), count) for i in indices])
    order, action, replacement = np.split(draws, 3, axis=1)
    chosen = _choose(windows, order, vocabulary.special_ids)
    ordinary = np.setdiff1d(np.arange(vocabulary.vocab_size), vocabulary.special_ids)
    random_tokens = ordinary[(replacement * len(ordinary)).astype(np.int64)]
    hidden = action < HIDDEN_FRACTION
    replaced = ~hidden & (action < HIDDEN_FRACTION + RANDOM_FRACTION)
    tokens = np.where(chosen & hidden, vocabulary.mask_id, windows)
    tokens = np.where(chosen & replaced, random_tokens, tokens)
    return Batch(tokens=tokens, labels=windows, loss_mask=chosen)


def _choose(
    windows: NDArray[np.int64], order: NDArray[np.float64], special_ids: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Choose the ordinary tokens with the smallest random numbers; shape [samples, seq]."""
    is_ordinary = ~np.isin(windows, special_ids)
    num_chosen = np.maximum(1, np.rint(PREDICTED_FRACTION * is_ordinary.sum(axis=1))).astype(int)
    # Specials come last: they are reached only where a sample has no ordinary token.
    ranks = np.argsort(np.argsort(order + ~is_ordinary, axis=1), axis=1)
    chosen: NDArray[np.bool_] = ranks < num_chosen[:, None]
    return chosen
