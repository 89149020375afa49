"""M of the improved model: by hand, and the laws that any memory must obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import GPT
from hypothesis import given
from hypothesis import strategies as st
from improved_cases import memory_of, plan, plans, row, rows, seen

from cona.cost.improved_memory import MEMORY_PARTS

H, VOCAB, TOKENS = 2048, 51200, 1024
LAYER = 12 * H * H + 6 * H
PARAMS = 24 * LAYER + VOCAB * H + TOKENS * H


def parts(x) -> dict[str, float]:
    return {name: float(size[0]) for name, size in seen(x).memory_parts.items()}


def test_one_gpu_by_hand() -> None:
    found = parts(row(plan(1, 1, 1, 1, 4)))
    kept = 24 * TOKENS * (8 + 8 + 16) * H  # no masks without dropout, no scores if fused
    logits = TOKENS * VOCAB * 10
    used = 18 * PARAMS + kept + logits
    assert found == {
        "weights": 2 * PARAMS,
        "gradients": 4 * PARAMS,
        "optimizer": 12 * PARAMS,
        "activations": kept,
        "logits": logits,
        "reserve": pytest.approx(2e9 + 0.03 * used, rel=1e-12),
    }


def test_scores_are_kept_without_fused_attention_unless_computed_again() -> None:
    fused, kept, again = (
        parts(row(plan(1, 1, 1, 1, 1, recompute=mode), flash=flash))["activations"]
        for mode, flash in (("none", 1), ("none", 0), ("selective", 0))
    )
    assert kept - fused == 24 * 5 * 16 * 1024**2
    assert again == fused


def test_full_recomputation_keeps_inputs_and_one_layer() -> None:
    found = parts(row(plan(1, 1, 1, 1, 1, recompute="full")))["activations"]
    assert found == 24 * 2 * TOKENS * H + TOKENS * 32 * H


def test_first_stage_keeps_one_microbatch_for_every_stage() -> None:
    few, many = (parts(row(plan(1, 1, 4, 4, m), vocab=1024))["activations"] for m in (2, 16))
    one_layer = 4 * TOKENS * 32 * H
    assert few == 2 * 6 * one_layer  # no more than there are
    assert many == 4 * 6 * one_layer


def test_last_stage_is_fullest_where_logits_are_large() -> None:
    x = row(plan(1, 1, 4, 1, 1), vocab=1024000)
    found = parts(x)
    assert found["logits"] == TOKENS * 1024000 * 10
    assert found["activations"] == 6 * TOKENS * 32 * H  # one in flight
    assert found["weights"] == 2 * (6 * LAYER + 1024000 * H)  # and no positions


@pytest.mark.parametrize(
    ("zero", "bytes_per_param"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 16 / 8)]
)
def test_zero_shards_state_over_dp(zero: int, bytes_per_param: float) -> None:
    found = parts(row(plan(8, 1, 1, 1, 1, zero_stage=zero)))
    state = sum(found[name] for name in ("weights", "gradients", "optimizer"))
    assert state == pytest.approx(bytes_per_param * PARAMS, rel=1e-12)


def test_zero_3_holds_one_gathered_layer_twice() -> None:
    two, three = (parts(row(plan(8, 1, 1, 1, 1, zero_stage=z)))["activations"] for z in (2, 3))
    assert three - two == 2 * 2 * LAYER


def test_dropout_keeps_a_mask_for_each_residual_branch() -> None:
    none, masks = (parts(row(plan(1, 1, 1, 1, 1), has_dropout=d))["activations"] for d in (0, 1))
    assert masks - none == 24 * TOKENS * 2 * H


def test_a_fused_loss_keeps_less_of_the_logits() -> None:
    assert parts(row(plan(1, 1, 1, 1, 1), logit_bytes=4))["logits"] == TOKENS * VOCAB * 4


@given(rows())
def test_parts_sum_to_the_memory(x) -> None:
    found = parts(x)
    assert tuple(found) == MEMORY_PARTS
    assert sum(found.values()) == pytest.approx(memory_of(x), rel=1e-12)
    assert min(found.values()) >= 0


@given(rows())
def test_memory_falls_with_tp(x) -> None:
    assert memory_of(replace(x, tp=2 * x.tp)) < memory_of(x)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.booleans(), plans())
def test_memory_never_rises_with_pp(pp: int, m: int, flash, other) -> None:
    techniques = other.techniques
    shallow, deep = (
        row(
            plan(2, 1, n, other.mbs, m, zero_stage=techniques.zero_stage),
            flash=flash,
            recompute_rest=float(techniques.recompute == "full"),
        )
        for n in (pp, 2 * pp)
    )
    assert memory_of(deep) <= memory_of(shallow)
    enough = replace(shallow, gbs=shallow.gbs * 0 + 2 * other.mbs)  # one micro-batch in flight
    assert memory_of(replace(enough, pp=2 * enough.pp)) < memory_of(enough)


@given(rows())
def test_memory_rises_with_mbs(x) -> None:
    assert memory_of(replace(x, mbs=2 * x.mbs, gbs=2 * x.gbs)) > memory_of(x)


@given(rows(), st.sampled_from(["zero_stage", "sequence_parallel"]))
def test_techniques_that_save_memory_do(x, name: str) -> None:
    """ZeRO-3 needs one gathered layer, so that it may lose where dp is small."""
    highest = {"zero_stage": 2.0, "sequence_parallel": 1.0}[name]
    without = replace(x, **{name: np.zeros(1)})
    assert memory_of(replace(x, **{name: np.array([highest])})) <= memory_of(without)


@given(plans(), st.booleans())
def test_recomputation_saves_memory(strategy, flash) -> None:
    x = row(strategy, GPT, flash=flash, virtual_stages=1)
    sizes = [
        memory_of(replace(x, recompute_attention=np.array([a]), recompute_rest=np.array([r])))
        for a, r in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))
    ]
    assert sizes[2] < sizes[1] <= sizes[0]
