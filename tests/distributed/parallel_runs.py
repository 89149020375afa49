"""Runs of the parallel engine on real ranks, and of the single process that they must equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_fixtures import tiny

from cona.config import override
from cona.engine.base import Batch, StepStats
from cona.gns import gradient_terms
from cona.specs import ModelSpec
from cona.strategy import Layout

LR = 3e-3
"""Learns fast; at 1e-2 one process differs from itself by 4e-3 after 12 iterations if only the
micro-batch, and with it the rounding, is another."""


def small(family: str, **changes: Any) -> ModelSpec:
    """Return a tiny model whose updates do not blow rounding up.

    With Adam's usual epsilon a gradient that is zero but for rounding becomes a whole step.
    """
    spec = tiny(family, **changes)
    return override(spec, {"training": spec.training.model_copy(update={"adam_eps": 1e-4})})


def layout(text: str) -> Layout:
    """Return the layout of a text such as 'dp2 pp2'; degrees that it leaves out are 1."""
    degrees = {part[:2]: int(part[2:]) for part in text.split()}
    return Layout(**{name: degrees.get(name, 1) for name in ("dp", "tp", "pp")})


def text_batches(spec: ModelSpec, sizes: Sequence[int], seed: int = 0) -> list[Batch]:
    """Return batches in which few tokens are frequent: their true gradient is not just noise."""
    rng = np.random.default_rng(seed)
    batches = []
    for size in sizes:
        text = rng.random((size, spec.seq_length + 1)) ** 10 * spec.vocab_size
        tokens = text.astype(np.int64)
        shape = (size, spec.seq_length)
        mask = np.ones(shape, bool) if spec.is_causal else rng.random(shape) < 0.3
        batch = Batch(tokens=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy(), loss_mask=mask)
        batches.append(batch)
    return batches


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a run saw."""

    steps: list[StepStats]
    eval_nats: float


def single_process(rank: int, spec: ModelSpec, batches: list[Batch], mbs: int) -> Trace:
    """Train and evaluate in one process, by the engine that knows no parallelism."""
    from cona.engine.megatron import build_engine

    engine = build_engine(spec, seed=0)
    steps = [engine.train_step(batch, exec_mbs=mbs, lr=LR) for batch in batches]
    return Trace(steps=steps, eval_nats=engine.evaluate(batches).nats)


def parallel(
    rank: int, spec: ModelSpec, layout: Layout, batches: list[Batch], mbs: int, **numerics: Any
) -> Trace:
    """Train and evaluate under one layout."""
    from cona.engine.parallel import ParallelEngine
    from cona.engine.stage import Numerics

    engine = ParallelEngine(spec, layout, 0, Numerics(**numerics))
    steps = [engine.train_step(batch, exec_mbs=mbs, lr=LR) for batch in batches]
    return Trace(steps=steps, eval_nats=engine.evaluate(batches).nats)


def losses(steps: Sequence[StepStats]) -> list[float]:
    """Return the mean loss of each iteration, nats per token."""
    return [one.loss_nats / one.num_tokens for one in steps]


def assert_equal_runs(ours: Trace, theirs: Trace, batches: Sequence[Batch]) -> None:
    """Check losses, noise scale terms, gradient norms, counts and the evaluation."""
    assert losses(ours.steps) == pytest.approx(losses(theirs.steps), rel=1e-5)
    assert ours.eval_nats == pytest.approx(theirs.eval_nats, rel=1e-5)
    for mine, other, batch in zip(ours.steps, theirs.steps, batches, strict=True):
        assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
        assert mine.num_tokens == other.num_tokens
        assert mine.num_microbatches == other.num_microbatches
        found, expected = (
            gradient_terms(one.sum_sq_microbatch, one.grad_norm, one.num_microbatches, len(batch))
            for one in (mine, other)
        )
        assert found is not None
        assert expected is not None
        assert found.tr_sigma == pytest.approx(expected.tr_sigma, rel=1e-4)
        assert found.mu_sq == pytest.approx(expected.mu_sq, rel=1e-4)
