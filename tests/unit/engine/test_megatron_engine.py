"""Training steps: statistics, independence of the execution, clipping, skipping, evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_fixtures import FAMILIES, random_batch, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_models import PlainModel, copy_weights, plain_names, to_plain

from cona.engine.base import Batch
from cona.engine.flat import square_norm
from cona.engine.megatron import build_engine
from cona.errors import ConfigError


def _train(engine, steps: int, *, exec_mbs: int, samples: int = 8, lr: float = 1e-2) -> list[float]:
    losses = []
    for i in range(steps):
        batch = random_batch(engine.spec, samples, seed=i)
        stats = engine.train_step(batch, exec_mbs=exec_mbs, lr=lr)
        losses.append(stats.loss_nats / stats.num_tokens)
    return losses


def _gradient(engine, batch: Batch) -> torch.Tensor:
    """The gradient of the batch's mean loss by one separate autograd call, in float64."""
    labels = np.where(batch.loss_mask, batch.labels, -100)
    losses = engine.model.losses(torch.from_numpy(batch.tokens), torch.from_numpy(labels))
    mean = losses.sum() / int(batch.loss_mask.sum())
    gradients = torch.autograd.grad(mean, list(engine.model.parameters()))
    return torch.cat([g.flatten().double() for g in gradients])


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_by_separate_autograd_calls(family):
    engine = build_engine(tiny(family), seed=0)
    _train(engine, 3, exec_mbs=4)
    batch = random_batch(engine.spec, 6, seed=9)
    parts = [batch[i : i + 2] for i in (0, 2, 4)]
    counts = [int(p.loss_mask.sum()) for p in parts]
    squares = [_gradient(engine, p).square().sum().item() for p in parts]
    norm = _gradient(engine, batch).norm().item()
    stats = engine.train_step(batch, exec_mbs=2, lr=1e-3)
    expected = sum(k * s for k, s in zip(counts, squares, strict=True)) / sum(counts)
    assert stats.sum_sq_microbatch == pytest.approx(expected, rel=1e-5)
    assert stats.grad_norm == pytest.approx(norm, rel=1e-5)
    assert (stats.num_tokens, stats.num_microbatches) == (sum(counts), 3)
    assert family != "bert" or len(set(counts)) > 1  # else the weights would not be tested


def test_equal_microbatches_have_equal_gradients():
    # Twice the same samples: G = g_1 = g_2, so mean |g_i|^2 = |G|^2.
    engine = build_engine(tiny("gpt"), seed=0)
    half = random_batch(engine.spec, 4)
    batch = Batch(
        tokens=np.tile(half.tokens, (2, 1)),
        labels=np.tile(half.labels, (2, 1)),
        loss_mask=np.tile(half.loss_mask, (2, 1)),
    )
    stats = engine.train_step(batch, exec_mbs=4, lr=1e-3)
    assert stats.sum_sq_microbatch == pytest.approx(stats.grad_norm**2, rel=1e-6)


def test_no_statistics_from_one_microbatch_or_when_not_wanted():
    engine = build_engine(tiny("gpt"), seed=0)
    batch = random_batch(engine.spec, 4)
    one = engine.train_step(batch, exec_mbs=4, lr=1e-3)
    unmeasured = engine.train_step(batch, exec_mbs=2, lr=1e-3, gradient_statistics=False)
    assert (one.sum_sq_microbatch, one.num_microbatches) == (None, 1)
    assert (unmeasured.sum_sq_microbatch, unmeasured.num_microbatches) == (None, 2)


def test_a_microbatch_without_masked_tokens_counts_for_nothing():
    engine = build_engine(tiny("bert"), seed=0)
    batch = random_batch(engine.spec, 6)
    mask = batch.loss_mask.copy()
    mask[2:4] = False
    thinned = replace(batch, loss_mask=mask)
    expected = _gradient(engine, thinned).norm().item()
    stats = engine.train_step(thinned, exec_mbs=2, lr=1e-3)
    assert stats.num_microbatches == 2
    assert stats.grad_norm == pytest.approx(expected, rel=1e-5)
    nothing = replace(batch, loss_mask=np.zeros_like(mask))
    with pytest.raises(ConfigError, match="no predicted token"):
        engine.train_step(nothing, exec_mbs=2, lr=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_the_same_for_every_executed_microbatch(family):
    runs = [_train(build_engine(tiny(family), seed=0), 20, exec_mbs=m) for m in (1, 2, 4, 8)]
    for other in runs[1:]:
        assert other == pytest.approx(runs[0], rel=1e-5)
    assert min(runs[0]) < runs[0][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_equal_plain_pytorch_adamw(family):
    spec = tiny(family)
    engine, plain = build_engine(spec, seed=0), PlainModel(spec)
    copy_weights(spec, engine.model, plain)
    decayed = [p for p in plain.parameters() if p.dim() > 1]
    rest = [p for p in plain.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for seed in range(5):
        batch = random_batch(spec, 4, seed)
        labels = np.where(batch.loss_mask, batch.labels, -100)
        losses = plain.losses(torch.from_numpy(batch.tokens), torch.from_numpy(labels))
        optimizer.zero_grad()
        (losses.sum() / int(batch.loss_mask.sum())).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), spec.training.clip_grad)
        optimizer.step()
        engine.train_step(batch, exec_mbs=2, lr=1e-2)
    weights = dict(plain.named_parameters())
    for name, p in engine.model.named_parameters():
        expected = weights[plain_names(spec)[name]]
        torch.testing.assert_close(to_plain(spec, name, p), expected, rtol=1e-3, atol=2e-4)


def test_gradient_is_clipped_after_it_was_measured():
    loose, tight = (
        build_engine(tiny("gpt", **{"training.clip_grad": c}), seed=0) for c in (1e9, 1e-3)
    )
    batch = random_batch(loose.spec, 4)
    before = loose.optimizer.weights.clone()
    free, clipped = (e.train_step(batch, exec_mbs=2, lr=0.1) for e in (loose, tight))
    assert free == clipped
    assert math.sqrt(square_norm(tight.optimizer.gradient)) == pytest.approx(1e-3, rel=1e-5)
    assert math.sqrt(square_norm(loose.optimizer.gradient)) == pytest.approx(free.grad_norm)
    assert not torch.equal(before, loose.optimizer.weights)


def test_non_finite_gradient_skips_the_update():
    engine = build_engine(tiny("gpt"), seed=0)
    _train(engine, 2, exec_mbs=4)
    good = engine.snapshot()
    with torch.no_grad():
        engine.optimizer.weights[0] = math.inf
    broken = engine.snapshot()
    stats = engine.train_step(random_batch(engine.spec, 4), exec_mbs=2, lr=1e-2)
    after = engine.snapshot()
    assert stats.skipped
    assert not math.isfinite(stats.grad_norm)
    assert torch.equal(after.flat.weights, broken.flat.weights)
    assert torch.equal(after.flat.moments[0], good.flat.moments[0])
    assert after.flat.num_updates == good.flat.num_updates == 2
    engine.restore(good)
    assert not engine.train_step(random_batch(engine.spec, 4), exec_mbs=2, lr=1e-2).skipped


@given(cuts=st.sets(st.integers(1, 11)))
@settings(max_examples=20, deadline=None)
def test_evaluation_does_not_depend_on_the_batch_size(cuts):
    engine = _trained("bert")
    samples = random_batch(engine.spec, 12, seed=3)
    edges = [0, *sorted(cuts), 12]
    parts = [samples[a:b] for a, b in pairwise(edges)]
    whole, pieces = engine.evaluate([samples]), engine.evaluate(parts)
    assert pieces.num_tokens == whole.num_tokens == int(samples.loss_mask.sum())
    ppl = [math.exp(s.nats / s.num_tokens) for s in (whole, pieces)]
    assert ppl[1] == pytest.approx(ppl[0], rel=1e-6)


@cache
def _trained(family: str):
    engine = build_engine(tiny(family), seed=0)
    _train(engine, 5, exec_mbs=4)
    return engine


def test_evaluation_changes_nothing_even_with_dropout():
    engine = build_engine(tiny("gpt", dropout=0.3), seed=0)
    batch = random_batch(engine.spec, 4)
    before = engine.snapshot()
    first, second = engine.evaluate([batch]), engine.evaluate([batch])
    after = engine.snapshot()
    assert first == second
    assert torch.equal(before.flat.weights, after.flat.weights)
    assert torch.equal(before.rng, after.rng)


def test_evaluation_is_the_mean_over_samples_by_hand():
    engine = build_engine(tiny("gpt"), seed=0)
    with torch.no_grad():
        engine.optimizer.weights.zero_()  # equal logits: every token costs ln(vocab_size)
    sums = engine.evaluate([random_batch(engine.spec, 3)])
    assert sums.num_tokens == 3 * 16
    assert sums.nats == pytest.approx(48 * math.log(100), rel=1e-6)


@pytest.mark.parametrize(("exec_mbs", "choice"), [(4, 3), (0, 1), (5, 6), (100, 6)])
def test_microbatch_that_does_not_divide_is_refused(exec_mbs, choice):
    message = f"exec_mbs {exec_mbs} does not divide the batch of 6 samples; nearest: {choice}"
    engine = _trained("gpt")
    with pytest.raises(ConfigError, match=message):
        engine.train_step(random_batch(engine.spec, 6), exec_mbs=exec_mbs, lr=1e-2)
