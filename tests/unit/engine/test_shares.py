"""Micro-batches and shares: every sample goes to exactly one replica, in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.engine.base import Batch
from cona.engine.shares import evaluation_share, micro_batches, share
from cona.errors import ConfigError


def _batch(samples: int) -> Batch:
    ids = np.arange(samples)[:, None]
    return Batch(tokens=ids, labels=ids, loss_mask=np.ones_like(ids, dtype=bool))


def _ids(shares) -> list[int]:
    return [int(i) for mine in shares for part in mine for i in part.tokens[:, 0]]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_replicas_share_a_batch_in_order_and_equally(dp, mbs, count):
    parts = micro_batches(_batch(dp * mbs * count), dp, mbs)
    shares = [share(parts, dp, replica) for replica in range(dp)]
    assert _ids(shares) == list(range(dp * mbs * count))
    assert len({len(mine) for mine in shares}) == 1


def test_a_lone_micro_batch_is_split_so_that_its_noise_can_be_measured():
    assert [len(part) for part in micro_batches(_batch(4), 1, 4)] == [2, 2]
    assert [len(part) for part in micro_batches(_batch(3), 1, 3)] == [3]
    assert [len(part) for part in micro_batches(_batch(8), 2, 4)] == [4, 4]


def test_a_batch_that_does_not_divide_names_the_nearest_that_does():
    with pytest.raises(ConfigError, match=r"10 samples .* 4 on 2 replicas; nearest batch: 8"):
        micro_batches(_batch(10), 2, 4)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
def test_evaluation_visits_every_sample_once(samples, dp, most):
    shares = [list(evaluation_share(_batch(samples), dp, r, most)) for r in range(dp)]
    assert _ids(shares) == list(range(samples))
    assert all(0 < len(part) <= most for mine in shares for part in mine)
