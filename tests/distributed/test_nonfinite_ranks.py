"""One rank's numbers are none: every rank sees that, skips the update, and gives no noise scale."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from parallel_runs import LR, layout, small, text_batches
from ranks import run_ranks

from cona.engine.base import Batch, StepStats
from cona.gns import gradient_terms
from cona.specs import ModelSpec

Seen = dict[str, list[StepStats]]
"""Iterations of one rank, by fault; healthy ones stand under "before" and "after"."""


def build(kind: str, spec: ModelSpec, degrees: str) -> Any:
    if kind == "megatron":
        from cona.engine.parallel import ParallelEngine

        return ParallelEngine(spec, layout(degrees), 0)
    from cona.engine.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(spec, layout(degrees), 0, zero_stage=int(kind[-1]))


def matrix_of(engine: Any) -> Any:
    """Return a weight that tensor parallelism splits: this rank's slice of it."""
    stage = engine._stage
    found = stage._parameters.items() if hasattr(stage, "_parameters") else named(stage)
    return next(p for key, p in found if "linear_fc1.weight" in getattr(key, "name", key))


def named(stage: Any) -> Any:
    return stage.ddp.module.named_parameters()


def gradient_fault(engine: Any, batch: Batch, factor: float, is_mine: bool) -> StepStats:
    """Train while one entry of the first micro-batch's gradient is broken, on this rank or not."""
    num_calls = 0

    def spoil(gradient: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        spoilt = gradient.clone()
        spoilt.view(-1)[0] = factor
        return spoilt if num_calls == 1 else gradient

    handle = matrix_of(engine).register_hook(spoil) if is_mine else None
    stats: StepStats = engine.train_step(batch, exec_mbs=2, lr=LR)
    if handle is not None:
        handle.remove()
    return stats


def state_fault(engine: Any, batch: Batch, vector: str, is_mine: bool) -> list[StepStats]:
    """Train twice from a state whose last number is NaN, on this rank or not."""
    state = engine.snapshot()
    if is_mine:
        state.vectors[vector][-1] = math.nan
    engine.restore(state)
    return [engine.train_step(batch, exec_mbs=2, lr=LR) for _ in range(2)]


def _faults(rank: int, kind: str, degrees: str, spec: ModelSpec, batch: Batch) -> Seen:
    engine, is_mine = build(kind, spec, degrees), rank == 1
    good = engine.snapshot()
    seen = {"before": [engine.train_step(batch, exec_mbs=2, lr=LR)]}
    for factor in (math.nan, math.inf, -math.inf):
        engine.restore(good)
        seen[f"gradient {factor}"] = [gradient_fault(engine, batch, factor, is_mine)]
        same = engine.snapshot()
        assert all(same.vectors[name].equal(vector) for name, vector in good.vectors.items())
    for vector in ("weights", "exp_avg"):
        engine.restore(good)
        seen[vector] = state_fault(engine, batch, vector, is_mine)
    engine.restore(good)
    seen["after"] = [engine.train_step(batch, exec_mbs=2, lr=LR)]
    return seen


def check(kind: str, degrees: str) -> None:
    spec = small("gpt", num_layers=2)
    batch = text_batches(spec, [8])[0]
    first, second = run_ranks(_faults, 2, kind, degrees, spec, batch, timeout_s=200)
    for fault, steps in first.items():
        lost = [is_lost(one) for one in steps]
        assert lost == [is_lost(one) for one in second[fault]], fault  # ranks stop together
        for one in (*steps, *second[fault]):
            if is_lost(one):
                assert one.skipped, fault
                terms = (one.sum_sq_microbatch, one.grad_norm, one.num_microbatches, len(batch))
                assert gradient_terms(*terms) is None, fault
        if fault in ("before", "after"):
            assert not any(lost)
        else:
            assert lost[-1], fault  # of a moment, the iteration after the one that it spoils
    healthy, again = (dataclasses.replace(first[n][0], seconds=None) for n in ("before", "after"))
    assert again == healthy


def is_lost(stats: StepStats) -> bool:
    return not (math.isfinite(stats.loss_nats) and math.isfinite(stats.grad_norm))


@pytest.mark.parametrize("degrees", ["dp2", "tp2", "pp2"])
def test_a_fault_of_one_rank_is_seen_by_both(degrees: str) -> None:
    check("megatron", degrees)


@pytest.mark.parametrize(("kind", "degrees"), [("zero1", "dp2"), ("zero2", "tp2")])
def test_a_fault_of_one_rank_is_seen_by_both_under_deepspeed(kind: str, degrees: str) -> None:
    check(kind, degrees)


@pytest.mark.slow
def test_a_fault_is_seen_where_weights_are_spread_too() -> None:
    check("zero3", "dp2")
