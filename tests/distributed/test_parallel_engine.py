"""The parallel engine does, under every kind of layout, what one process does."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from parallel_runs import (
    LR,
    assert_equal_runs,
    layout,
    losses,
    parallel,
    single_process,
    small,
    text_batches,
)
from ranks import run_ranks

from cona.engine.base import Batch
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import Layout

CASES = {
    "gpt, data parallel": ("gpt", {}, "dp2"),
    "bert, tied embedding on two stages": ("bert", {}, "pp2"),
    # tp_max 2 pads 100 tokens to 256: the second rank's slice of the vocabulary is all padding.
    "llama, grouped queries, padded slice": ("llama", {"tp_max": 2}, "tp2"),
    "llama, an output weight of its own": ("llama", {"tied_embeddings": False}, "pp2"),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_what_one_process_trains(case):
    family, changes, degrees = CASES[case]
    spec = small(family, **changes)
    check_parity(spec, layout(degrees))


@pytest.mark.parametrize(("family", "degrees"), [("gpt", "tp2 pp2"), ("bert", "dp2 tp2")])
def test_four_ranks_train_what_one_process_trains(family, degrees):
    check_parity(small(family), layout(degrees))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert", "llama"])
@pytest.mark.parametrize("degrees", ["dp4", "pp4", "tp4", "dp2 tp2", "dp2 pp2", "tp2 pp2"])
def test_every_layout_of_four_ranks(family, degrees):
    check_parity(small(family, num_layers=4, num_kv_heads=4), layout(degrees))


def check_parity(spec: ModelSpec, layout: Layout) -> None:
    batches = with_empty_micro_batch(text_batches(spec, [8, 8, 16, 8]))
    (expected,) = run_ranks(single_process, 1, spec, batches, 2)
    for found in run_ranks(parallel, layout.num_gpus, spec, layout, batches, 2):
        assert_equal_runs(found, expected, batches)


def with_empty_micro_batch(batches: list[Batch]) -> list[Batch]:
    """Let the third micro-batch of the second batch predict nothing."""
    if batches[1].loss_mask.all():
        return batches
    batches[1].loss_mask[4:6] = False
    return batches


# --- micro-batches ------------------------------------------------------------------------------


def test_a_lone_micro_batch_is_split_in_two_for_the_statistics():
    spec = small("gpt")
    batches = text_batches(spec, [4, 4])
    (expected,) = run_ranks(single_process, 1, spec, batches, 2)
    found = run_ranks(parallel, 2, spec, layout("pp2"), batches, 4)[0]
    assert_equal_runs(found, expected, batches)
    assert found.steps[0].num_microbatches == 2


def test_a_lone_micro_batch_of_an_odd_size_gives_no_statistics():
    spec = small("gpt")
    batches = text_batches(spec, [3])
    (expected,) = run_ranks(single_process, 1, spec, batches, 3)
    found = run_ranks(parallel, 2, spec, layout("tp2"), batches, 3)[0]
    assert found.steps[0].sum_sq_microbatch is None
    assert losses(found.steps) == pytest.approx(losses(expected.steps), rel=1e-5)


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_is_finite_and_close(precision):
    spec = small("gpt")
    batches = text_batches(spec, [8] * 4)
    (exact,) = run_ranks(single_process, 1, spec, batches, 2)
    found = run_parallel(spec, "dp2", batches, precision=precision)
    assert losses(found.steps) == pytest.approx(losses(exact.steps), rel=1e-2)
    assert losses(found.steps) != pytest.approx(losses(exact.steps), rel=1e-6)
    for mine, other in zip(found.steps, exact.steps, strict=True):
        assert not mine.skipped
        assert mine.grad_norm == pytest.approx(other.grad_norm, rel=5e-2)
        assert mine.sum_sq_microbatch == pytest.approx(other.sum_sq_microbatch, rel=5e-2)


def run_parallel(spec: ModelSpec, degrees: str, batches: list[Batch], **numerics: Any) -> Any:
    place = layout(degrees)
    first, *others = run_ranks(_parallel, place.num_gpus, spec, place, batches, numerics)
    assert all(losses(one.steps) == losses(first.steps) for one in others)
    return first


def _parallel(
    rank: int, spec: ModelSpec, layout: Layout, batches: list[Batch], numerics: dict[str, Any]
) -> Any:
    return parallel(rank, spec, layout, batches, 2, **numerics)


def _overflow(rank: int, spec: ModelSpec, batch: Batch) -> list[dict[str, Any]]:
    """Train with a loss scale that no float16 gradient survives, then with the usual one."""
    from cona.engine.parallel import ParallelEngine
    from cona.engine.stage import Numerics

    engine = ParallelEngine(spec, layout("pp2"), 0, Numerics(precision="fp16"))
    usual = engine.snapshot()
    huge = engine.snapshot()
    huge.scalars["scaler"]["scale"].fill_(2.0**60)
    seen = []
    for state in (huge, None, usual):
        if state is not None:
            engine.restore(state)
        before = engine.snapshot()
        stats = engine.train_step(batch, exec_mbs=2, lr=LR)
        after = engine.snapshot()
        changed = any(not after.vectors[k].equal(v) for k, v in before.vectors.items())
        updates, scale = after.scalars["num_updates"], engine.loss_scale
        seen.append({"stats": stats, "changed": changed, "updates": updates, "scale": scale})
    return seen


def test_an_overflow_is_skipped_counted_apart_and_halves_the_loss_scale():
    spec = small("gpt")
    for first, second, usual in run_ranks(_overflow, 2, spec, text_batches(spec, [8])[0]):
        for overflow in (first, second):
            assert overflow["stats"].skipped
            assert not math.isfinite(overflow["stats"].grad_norm)
            assert not overflow["changed"]
            assert overflow["updates"] == 0
        # Megatron's hysteresis forgives one overflow.
        assert (first["scale"], second["scale"]) == (2.0**60, 2.0**59)
        assert not usual["stats"].skipped
        assert usual["changed"]
        assert (usual["updates"], usual["scale"]) == (1, 2.0**12)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputed_activations_change_nothing(dropout):
    spec = small("gpt", dropout=dropout)
    batches = text_batches(spec, [8] * 3)
    kept = run_parallel(spec, "tp2", batches, recompute="none")
    again = run_parallel(spec, "tp2", batches, recompute="full")
    assert losses(again.steps) == pytest.approx(losses(kept.steps), rel=1e-6)
    norms = [one.grad_norm for one in kept.steps]
    assert [one.grad_norm for one in again.steps] == pytest.approx(norms, rel=1e-6)


# --- dropout ------------------------------------------------------------------------------------


def same_samples(spec: ModelSpec) -> Batch:
    """Return a batch of two equal halves."""
    half = text_batches(spec, [2])[0]
    parts = {f.name: np.tile(getattr(half, f.name), (2, 1)) for f in dataclasses.fields(Batch)}
    return Batch(**parts)


@pytest.mark.parametrize(("dropout", "differ"), [(0.0, False), (0.2, True)])
def test_replicas_draw_masks_of_their_own(dropout, differ):
    spec = small("gpt", dropout=dropout)
    stats = run_parallel(spec, "dp2", [same_samples(spec)]).steps[0]
    # Equal gradients have the mean square norm of their mean; any difference makes it larger.
    ratio = stats.sum_sq_microbatch / stats.grad_norm**2
    assert ratio > 1.01 if differ else ratio == pytest.approx(1, rel=1e-5)


def _replicated(rank: int, spec: ModelSpec, batches: list[Batch]) -> dict[str, bytes]:
    """Train with tensor parallelism; return the weights that both ranks hold whole."""
    from cona.engine.parallel import ParallelEngine

    engine = ParallelEngine(spec, layout("tp2"), 0)
    for batch in batches:
        engine.train_step(batch, exec_mbs=2, lr=LR)
    weights = next(iter(engine.snapshot().vectors.values()))
    return {
        shard.name: weights[start : start + shard.numel].numpy().tobytes()
        for shard, start in engine._stage.starts.items()
        if shard.shape == shard.global_shape
    }


def test_tensor_parallel_ranks_agree_on_what_they_both_hold():
    spec = small("gpt", dropout=0.2)
    first, second = run_ranks(_replicated, 2, spec, text_batches(spec, [4] * 3))
    assert len(first) >= 4 * spec.num_layers
    assert first == second


def test_dropout_is_drawn_anew_each_iteration_and_repeats_with_the_seed():
    spec = small("gpt", dropout=0.2)
    batch = text_batches(spec, [4])[0]
    first = run_ranks(_without_learning, 2, spec, batch)[0]
    assert len(set(first)) == 3
    assert run_ranks(_without_learning, 2, spec, batch)[0] == first


def _without_learning(rank: int, spec: ModelSpec, batch: Batch) -> list[float]:
    from cona.engine.parallel import ParallelEngine

    engine = ParallelEngine(spec, layout("pp2"), 0)
    return losses([engine.train_step(batch, exec_mbs=2, lr=0.0) for _ in range(3)])


# --- what users do wrong ------------------------------------------------------------------------


def _mistakes(rank: int, spec: ModelSpec, batch: Batch) -> tuple[list[str], list[float]]:
    """Make every mistake on the way; return what was said, and the losses in between."""
    from cona.engine.parallel import ParallelEngine

    messages, seen = [], []

    def refused(action: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            action()
        messages.append(str(caught.value))

    refused(lambda: ParallelEngine(spec, layout("dp4"), 0))
    engine = ParallelEngine(spec, layout("dp2"), 0)
    unmasked = dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    for mistake in (
        lambda: engine.switch(layout("dp2 tp2")),
        lambda: engine.switch(layout("pp2")),
        lambda: engine.train_step(batch, exec_mbs=3, lr=LR),
        lambda: engine.train_step(unmasked, exec_mbs=2, lr=LR),
    ):
        refused(mistake)
        seen.append(engine.train_step(batch, exec_mbs=2, lr=LR))
    return messages, losses(seen)


def test_mistakes_are_named_and_change_nothing():
    spec = small("gpt", num_layers=3)
    batch = text_batches(spec, [8])[0]
    (expected,) = run_ranks(single_process, 1, spec, [batch] * 4, 2)
    for messages, found in run_ranks(_mistakes, 2, spec, batch):
        too_many, four, stages, uneven, empty = messages
        assert "dp4-tp1-pp1" in too_many
        assert "valid: dp2-tp1-pp1" in too_many
        assert "dp*tp*pp = 4" in four
        assert "num_layers 3 is not divisible by pp 2" in stages
        assert "nearest batch: 6" in uneven
        assert "no predicted token" in empty
        assert found == pytest.approx(losses(expected.steps), rel=1e-5)
