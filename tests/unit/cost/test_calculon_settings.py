"""Calculon with other recomputation and without a sharded optimizer, by hand."""

from __future__ import annotations

import pytest
from cost_cases import GPT, ONE_GPU, PAPER, ladder_strategies, strategy
from hypothesis import given
from hypothesis import strategies as st

from cona.cost.calculon import Calculon
from cona.strategy import Strategy

CASES = st.sampled_from([s for s in ladder_strategies(GPT) if s.tp < 4])


def test_selective_recomputation_repeats_scores_softmax_and_dropout() -> None:
    # 16 heads of 128 elements, 1024 tokens: 16.8 M scores, 2 * 16 * 1024 * 128 elements of q and k
    scores = 16777216
    scores_s = 2 * scores * 128 / 187.2e12 + 2 * (4194304 + scores) / 1536e9  # 4.3 GFLOP, 42 MB
    softmax_s = 5 * scores / 7.8e12 + 4 * scores / 1536e9  # 67 MB
    dropout_s = scores / 7.8e12 + 5 * scores / 1536e9  # 84 MB
    model = Calculon(GPT, ONE_GPU, recompute="selective")
    parts = model.breakdown(strategy(1, 1, 1, 1, 8))
    assert parts["recompute"] == pytest.approx(
        8 * 24 * (scores_s + softmax_s + dropout_s), rel=1e-12
    )


def test_an_unsharded_optimizer_all_reduces_and_steps_over_everything() -> None:
    num_weights = 4 * 2048 * 2048 + 2 * 2048 * 8192 + 4 * 2048
    parts = Calculon(GPT, PAPER, is_sharded=False).breakdown(strategy(4, 1, 1, 1, 8 * 4))
    expected_s = 24 * (20e-6 + 2 * num_weights / 22.5e9)
    assert parts["dp_comm"] == pytest.approx(expected_s, rel=1e-12)
    four = Calculon(GPT, PAPER).breakdown(strategy(4, 1, 1, 1, 8 * 4))["optimizer"]
    assert 3 < parts["optimizer"] / four < 4.5  # the efficiency depends on the size


@given(case=CASES)
def test_less_recomputation_is_never_slower(case: Strategy) -> None:
    full, selective, none = (
        Calculon(GPT, PAPER, recompute=mode).breakdown(case)
        for mode in ("full", "selective", "none")
    )
    assert full["recompute"] > selective["recompute"] > none["recompute"] == 0
    assert full["bubble"] >= selective["bubble"] >= none["bubble"]
    assert (full["tp_comm"] > none["tp_comm"]) == (case.tp > 1)
    for part in ("compute", "pp_p2p", "dp_comm", "optimizer", "head"):
        assert full[part] == selective[part] == none[part]
