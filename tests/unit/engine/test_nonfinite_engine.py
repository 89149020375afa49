"""The single process: a number that is none, wherever it stands, is seen and not learned from."""

from __future__ import annotations

import math

import pytest
import torch
from engine_fixtures import random_batch, tiny

from cona.engine.base import StepStats
from cona.engine.megatron import MegatronEngine, build_engine
from cona.gns import gradient_terms


@pytest.fixture(scope="module")
def engine() -> MegatronEngine:
    return build_engine(tiny("gpt"), seed=0)


def train(engine: MegatronEngine) -> StepStats:
    return engine.train_step(random_batch(engine.spec, 8), exec_mbs=2, lr=1e-2)


def has_terms(stats: StepStats) -> bool:
    terms = (stats.sum_sq_microbatch, stats.grad_norm, stats.num_microbatches, 8)
    return gradient_terms(*terms) is not None


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("micro_batch", [0, 3])
def test_a_gradient_of_one_micro_batch(
    engine: MegatronEngine, factor: float, micro_batch: int
) -> None:
    parameter, good = next(iter(engine.model.parameters())), engine.snapshot()
    calls: list[int] = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        spoilt = gradient.clone()
        spoilt.view(-1)[0] = factor
        return spoilt if calls[-1] == micro_batch else gradient

    handle = parameter.register_hook(spoil)
    stats = train(engine)
    handle.remove()
    assert len(calls) == 4
    assert math.isfinite(stats.loss_nats)
    assert stats.skipped
    assert not math.isfinite(stats.grad_norm)
    assert not has_terms(stats)
    after = engine.snapshot()
    assert torch.equal(after.flat.weights, good.flat.weights)
    assert all(map(torch.equal, after.flat.moments, good.flat.moments))
    engine.restore(good)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_weight_spoils_the_loss_and_every_evaluation(
    engine: MegatronEngine, number: float
) -> None:
    good = engine.snapshot()
    with torch.no_grad():
        engine.optimizer.weights[:] = number
    stats = train(engine)
    assert not math.isfinite(stats.loss_nats)
    assert stats.skipped
    assert not has_terms(stats)
    assert not math.isfinite(engine.evaluate([random_batch(engine.spec, 4)]).nats)
    engine.restore(good)
    assert has_terms(train(engine))


def test_a_moment_spoils_the_iteration_after(engine: MegatronEngine) -> None:
    good = engine.snapshot()
    engine.optimizer.moments[0][:] = math.nan
    first, second = train(engine), train(engine)
    assert not first.skipped  # the gradient itself was sound
    assert second.skipped
    assert not has_terms(second)
    engine.restore(good)
    assert not train(engine).skipped


def test_a_loss_of_infinity_is_seen_though_its_gradient_is_sound(engine: MegatronEngine) -> None:
    spoilt = engine.model.losses
    engine.model.losses = lambda *args: spoilt(*args) + math.inf  # type: ignore[method-assign]
    stats = train(engine)
    del engine.model.losses
    assert stats.loss_nats == math.inf
    assert stats.num_microbatches == 4
