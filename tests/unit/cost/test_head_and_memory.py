"""The LM-head term and the paper's memory screen, by hand."""

from __future__ import annotations

import pytest
from cost_cases import BERT, GPT, LLAMA, MODELS, PAPER, ladder_strategies, model_spec, strategy
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import PaperMemory, time_model

CASES = st.sampled_from([(m, s) for m in MODELS for s in ladder_strategies(m) if s.tp < 4])


def test_head_of_gpt_by_hand() -> None:
    # 1 x 1024 tokens, hidden 2048, padded vocabulary 51200
    gemm_s = 214748364800 / 296.4e12 + 318767104 / 1843.2e9  # 215 GFLOP at 95 %, 319 MB at 90 %
    logits = 52428800
    loss_s = (5 + 8) * logits / 7.8e12 + 2 * 6 * logits / 1843.2e9  # fp16 <-> fp32: 6 B each way
    parts = time_model("calculon+head", GPT, PAPER).breakdown(strategy(4, 1, 1, 1, 32))
    assert parts["head"] == pytest.approx(8 * (3 * gemm_s + loss_s), rel=1e-12)


def test_head_is_split_by_tp() -> None:
    # each of 2 ranks: 107 GFLOP at 90 %, 161 MB at 90 %, 26214400 logits
    gemm_s = 107374182400 / 280.8e12 + (2097152 + 26214400 + 52428800) * 2 / 1843.2e9
    loss_s = 13 * 26214400 / 7.8e12 + 12 * 26214400 / 1843.2e9
    parts = time_model("calculon+head", GPT, PAPER).breakdown(strategy(2, 2, 1, 1, 32))
    assert parts["head"] == pytest.approx(16 * (3 * gemm_s + loss_s), rel=1e-12)


@given(CASES)
def test_head_is_all_that_the_two_models_differ_in(case) -> None:
    model, one = case
    without = time_model("calculon", model, PAPER).breakdown(one)
    with_head = time_model("calculon+head", model, PAPER).breakdown(one)
    assert without.pop("head") == 0
    assert with_head.pop("head") > 0
    assert with_head == without


@given(CASES)
def test_head_is_paid_once_per_microbatch_whatever_the_stages(case) -> None:
    model, one = case
    timer = time_model("calculon+head", model, PAPER)
    head_s = timer.breakdown(one)["head"]
    alone = strategy(1, one.tp, 1, one.mbs, one.mbs)
    assert head_s == pytest.approx(one.num_microbatches * timer.breakdown(alone)["head"], rel=1e-12)


def test_head_weighs_most_where_the_vocabulary_is_large() -> None:
    def share(model) -> float:
        parts = time_model("calculon+head", model, PAPER).breakdown(strategy(1, 1, 1, 8, 8))
        return parts["head"] / sum(parts.values())

    assert share(LLAMA) > 2 * share(GPT)
    assert share(LLAMA) > 2 * share(BERT)


# --- memory ---------------------------------------------------------------------------------------


def test_paper_memory_by_hand() -> None:
    model = model_spec(num_layers=4, hidden_size=8, num_heads=2, ffn_size=32, vocab_size=1024)
    # layer: 4*64 + 2*256 + 9*8 + 32 = 872; table 8*1024 = 8192; 2 of the 4 layers
    # 3 samples x 1024 tokens x 8 x 2 layers x 2 B
    expected = (16 * (8192 + 2 * 872) + 2 * 3 * 1024 * 8 * 2) / 2
    assert PaperMemory(model).memory_bytes(strategy(1, 2, 2, 3, 6)) == expected


@pytest.mark.parametrize(("model", "billions"), [(GPT, 1.313), (BERT, 0.334)])
def test_paper_memory_is_16_bytes_per_parameter(model, billions: float) -> None:
    one = strategy(1, 1, 1, 1, 8)
    activations = 2 * model.seq_length * model.hidden_size * model.num_layers
    params = (PaperMemory(model).memory_bytes(one) - activations) / 16
    assert params == pytest.approx(billions * 1e9, rel=1e-3)
    assert params == pytest.approx(model.num_params, rel=0.01)  # but positions and final norm


def test_memory_bound_is_inclusive_and_named() -> None:
    memory, one = PaperMemory(GPT), strategy(1, 1, 1, 1, 8)
    needed_gb = memory.memory_bytes(one) / 1e9
    assert memory.why_not(one, needed_gb) is None
    reason = memory.why_not(one, 20)
    assert reason is not None
    assert f"needs {needed_gb:.1f} GB" in reason
    assert "20 GB" in reason


@given(CASES)
def test_memory_rises_with_mbs_and_falls_with_tp_and_pp(case) -> None:
    model, one = case
    memory = PaperMemory(model)

    def needed(tp: int, pp: int, mbs: int) -> float:
        return memory.memory_bytes(strategy(1, tp, pp, mbs, mbs))

    here = needed(one.tp, one.pp, one.mbs)
    assert needed(one.tp, one.pp, 2 * one.mbs) > here
    assert needed(2 * one.tp, one.pp, one.mbs) == here / 2
    assert here / 2 < needed(one.tp, 2 * one.pp, one.mbs) < here
