from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.data import EvaluationSamples, PreparedData, TrainingSamples
from cona.engine.base import Batch
from cona.errors import DataError

MakeStream = Callable[..., PreparedData]


def joined(batches: list[Batch]) -> tuple[list[list[int]], list[list[int]], list[list[bool]]]:
    return (
        np.concatenate([b.tokens for b in batches]).tolist(),
        np.concatenate([b.labels for b in batches]).tolist(),
        np.concatenate([b.loss_mask for b in batches]).tolist(),
    )


# --- windows ------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 20), st.booleans())
def test_windows_are_consecutive_and_disjoint(
    make_stream: MakeStream, num_tokens: int, seq: int, is_causal: bool
) -> None:
    windows = make_stream(num_tokens, seq_length=seq, is_causal=is_causal).windows("train")
    length = seq + is_causal
    assert windows.shape == (num_tokens // length, length)
    assert windows.ravel().tolist() == list(range(5, 5 + windows.size))


def test_unknown_split_offers_the_nearest(make_stream: MakeStream) -> None:
    with pytest.raises(DataError, match="unknown split 'validation': did you mean 'valid'"):
        make_stream(100).windows("validation")


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [True, False])
@given(
    seed=st.integers(0, 2**32),
    first=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_batch_sizes_do_not_change_the_samples(
    make_stream: MakeStream, is_causal: bool, seed: int, first: int, sizes: list[int]
) -> None:
    samples = TrainingSamples(make_stream(103, is_causal=is_causal), seed)
    starts = first + np.cumsum([0, *sizes[:-1]])
    parts = [samples.batch(int(s), size) for s, size in zip(starts, sizes, strict=True)]
    resumed = TrainingSamples(make_stream(103, is_causal=is_causal), seed)
    assert joined(parts) == joined([resumed.batch(first, sum(sizes))])


@given(st.integers(0, 100), st.integers(0, 50), st.integers(9, 200))
def test_each_epoch_sees_every_window_once(
    make_stream: MakeStream, seed: int, epoch: int, num_tokens: int
) -> None:
    samples = TrainingSamples(make_stream(num_tokens), seed)
    count = samples.epoch_samples
    assert count == num_tokens // 5
    batch = samples.batch(epoch * count, count)
    assert sorted(batch.tokens[:, 0].tolist()) == [5 + 5 * i for i in range(count)]


def test_epochs_and_seeds_have_other_orders(make_stream: MakeStream) -> None:
    prepared = make_stream(500)
    orders = {
        TrainingSamples(prepared, seed).batch(100 * epoch, 100).tokens.tobytes()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    in_place = prepared.windows("train")[:, :-1].astype(np.int64).tobytes()
    assert len(orders | {in_place}) == 5


def test_order_never_changes(make_stream: MakeStream) -> None:
    # Stored trajectories rest on this order, whatever the version of numpy.
    tokens = TrainingSamples(make_stream(40), 0).batch(0, 8).tokens
    assert ((tokens[:, 0] - 5) // 5).tolist() == [7, 4, 2, 6, 5, 0, 1, 3]


def test_causal_labels_are_the_next_tokens(make_stream: MakeStream) -> None:
    batch = TrainingSamples(make_stream(500), 3).batch(7, 6)
    assert batch.tokens.shape == batch.labels.shape == (6, 4)
    assert batch.tokens.dtype == batch.labels.dtype == np.int64
    assert np.array_equal(batch.labels, batch.tokens + 1)
    assert batch.loss_mask.all()


def test_masked_samples_change_from_epoch_to_epoch(make_stream: MakeStream) -> None:
    prepared = make_stream(40, seq_length=40, is_causal=False)  # one window
    samples = TrainingSamples(prepared, 0)
    batch = samples.batch(0, 5)
    assert batch.tokens.shape == (5, 40)
    assert np.array_equal(batch.labels, np.tile(np.arange(5, 45), (5, 1)))
    assert (batch.loss_mask.sum(axis=1) == 6).all()
    assert len({row.tobytes() for row in batch.loss_mask}) == 5


def test_negative_seed(make_stream: MakeStream) -> None:
    with pytest.raises(DataError, match="seed -1 is negative; smallest: 0"):
        TrainingSamples(make_stream(100), -1)


# --- evaluation ---------------------------------------------------------------------------------


def test_evaluation_windows_by_hand(make_stream: MakeStream) -> None:
    # 10 windows, 4 chosen: the middles of four stretches of 2.5 are 1.25, 3.75, 6.25, 8.75.
    (batch,) = EvaluationSamples(make_stream(50), "valid", 4).batches(8)
    assert ((batch.tokens[:, 0] - 5) // 5).tolist() == [1, 3, 6, 8]


@given(st.integers(1, 60), st.integers(1, 60))
def test_evaluation_windows_are_distinct_and_spread(
    make_stream: MakeStream, num_windows: int, num_samples: int
) -> None:
    prepared = make_stream(5 * num_windows)
    if num_samples > num_windows:
        with pytest.raises(DataError, match=f"has {num_windows} windows .* nearest: {num_windows}"):
            EvaluationSamples(prepared, "probe", num_samples)
        return
    evaluation = EvaluationSamples(prepared, "probe", num_samples)
    rows = np.concatenate([b.tokens[:, 0] for b in evaluation.batches(7)]) // 5 - 1
    assert len(evaluation) == len(set(rows.tolist())) == num_samples
    spacing = np.diff([-1, *rows.tolist(), num_windows])
    assert spacing.max() <= num_windows / num_samples + 1


@pytest.mark.parametrize("is_causal", [True, False])
@given(batch_size=st.integers(1, 30))
def test_evaluation_does_not_depend_on_the_batch_size(
    make_stream: MakeStream, is_causal: bool, batch_size: int
) -> None:
    evaluation = EvaluationSamples(make_stream(300, is_causal=is_causal), "valid", 20)
    batches = list(evaluation.batches(batch_size))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert joined(batches) == joined(list(evaluation.batches(20)))


def test_evaluation_masks_belong_to_the_window(make_stream: MakeStream) -> None:
    prepared = make_stream(300 * 20, seq_length=20, is_causal=False)
    few, many = EvaluationSamples(prepared, "valid", 100), EvaluationSamples(prepared, "valid", 300)
    (some,), (every,) = few.batches(300), many.batches(300)
    rows = (some.labels[:, 0] - 5) // 20
    assert np.array_equal(some.loss_mask, every.loss_mask[rows])
    assert np.array_equal(some.tokens, every.tokens[rows])
    # and differ from the training masks of the samples with the same numbers
    training = TrainingSamples(prepared, 0).batch(0, 300)
    assert not np.array_equal(every.loss_mask, training.loss_mask)


def test_bytes_of_the_predicted_tokens_by_hand(make_stream: MakeStream) -> None:
    # Two windows of 5; ids 5..9 and 10..14, bytes = id % 7; the first of each is not predicted.
    assert EvaluationSamples(make_stream(10), "valid", 2).num_bytes == (
        (6 + 0 + 1 + 2) + (4 + 5 + 6 + 0)
    )
    assert EvaluationSamples(make_stream(10, is_causal=False), "valid", 2).num_bytes is None


@pytest.mark.parametrize("num_samples", [0, -3])
def test_no_evaluation_samples(make_stream: MakeStream, num_samples: int) -> None:
    with pytest.raises(DataError, match=f"{num_samples} were asked for; nearest: 1"):
        EvaluationSamples(make_stream(100), "valid", num_samples)
