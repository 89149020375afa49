"""Calculon's equations: against Calculon itself, by hand, and by their invariants."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from cost_cases import (
    BERT,
    GPT,
    INTER,
    INTRA,
    LLAMA,
    MODELS,
    ONE_GPU,
    ONE_NODE,
    PAPER,
    cluster_spec,
    ladder_strategies,
    model_spec,
    strategy,
)
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import time_model, time_models
from cona.errors import ConfigError

SYSTEMS = {"a100_80g_2gpu_node": PAPER, "a100_80g:all_nvlink": ONE_NODE}
PARTS = ["compute", "recompute", "tp_comm", "pp_p2p", "bubble", "dp_comm", "optimizer", "head"]
CALCULONS = ("calculon", "calculon+head")
TIMERS = {(n, m.name): time_model(n, m, PAPER) for n in CALCULONS for m in MODELS}
FEASIBLE = {
    key: [s for s in ladder_strategies(timer.model) if timer.why_not(s) is None]
    for key, timer in TIMERS.items()
}
EITHER = st.sampled_from([(key, s) for key, found in FEASIBLE.items() for s in found])


def reference_rows() -> list[dict[str, str]]:
    # Iteration times that Calculon itself returned: fp16, full recompute, tensor parallelism by
    # all-reduce, no overlap, the optimizer sharded where dp > 1.
    with (Path(__file__).parent / "calculon_times.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", reference_rows(), ids=lambda r: "-".join(list(r.values())[:-1]))
def test_equals_what_calculon_returned(row: dict[str, str]) -> None:
    sizes = {k: int(v) for k, v in row.items() if k not in ("system", "seconds")}
    model = model_spec(
        num_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        num_heads=sizes["heads"],
        ffn_size=sizes["ffn"],
        seq_length=sizes["seq"],
    )
    one = strategy(*(sizes[k] for k in ("dp", "tp", "pp", "mbs", "gbs")))
    computed_s = time_model("calculon", model, SYSTEMS[row["system"]]).time_s(one)
    assert computed_s == pytest.approx(float(row["seconds"]), rel=1e-9, abs=0)


def test_the_reference_rows_are_diverse() -> None:
    rows = reference_rows()
    assert {r["system"] for r in rows} == set(SYSTEMS)
    assert len({(r["dp"], r["tp"], r["pp"]) for r in rows}) >= 12
    assert len({r["hidden"] + r["layers"] for r in rows}) == 3


# --- by hand --------------------------------------------------------------------------------------


def test_p2p_is_charged_twice_per_microbatch() -> None:
    # 1 sample x 1024 tokens x 2048 x 2 B = 4194304 B over 22.5 GB/s, plus 20 us; 2 * 8 of them
    parts = time_model("calculon", GPT, PAPER).breakdown(strategy(1, 1, 4, 1, 8))
    assert parts["pp_p2p"] == pytest.approx(16 * (20e-6 + 4194304 / 22.5e9), rel=1e-12)


def test_dp_comm_is_one_reduce_scatter_and_one_all_gather_per_layer() -> None:
    # W = 4*2048^2 + 2*2048*8192 + 4*2048 = 50339840 weights of 2 B; each byte moves once
    parts = time_model("calculon", GPT, PAPER).breakdown(strategy(4, 1, 1, 1, 8))
    assert parts["dp_comm"] == pytest.approx(24 * 2 * (20e-6 + 100679680 / 22.5e9), rel=1e-12)


def test_tp_comm_is_six_all_reduces_and_four_sums_per_layer() -> None:
    # 2 samples: A = 4194304 elements, 8388608 B. Between 2 peers c*(1 + o/n) = 2 * (1 - 1/2) = 1
    all_reduce_s = 10e-6 + 8388608 / 195e9
    # the sum adds A/2 elements (2.1 MFLOP: 10 % of 78 TFLOP/s), moves 2AE = 16.8 MB (75 % of HBM)
    sum_s = 2097152 / 7.8e12 + 16777216 / 1536e9
    parts = time_model("calculon", GPT, PAPER).breakdown(strategy(1, 2, 2, 2, 8))
    slots = 4 * 12  # m = 4 micro-batches, 12 layers per stage
    assert parts["tp_comm"] == pytest.approx(slots * (6 * all_reduce_s + 4 * sum_s), rel=1e-12)


def test_optimizer_steps_tensor_by_tensor_on_a_quarter_of_each() -> None:
    # 11 FLOP and 12 B per weight; q, k, v, proj have 4194304 / 4 weights: 11.5 MFLOP at 10 % of
    # 78 TFLOP/s and 12.6 MB at 75 % of 2048 GB/s; mlp1, mlp2 four times that; norms 12288 B at 30 %
    square_s = 11534336 / 7.8e12 + 12582912 / 1536e9
    wide_s = 46137344 / 7.8e12 + 50331648 / 1536e9
    norm_s = 11264 / 7.8e12 + 12288 / 614.4e9
    parts = time_model("calculon", GPT, PAPER).breakdown(strategy(4, 1, 1, 1, 8))
    per_layer_s = 4 * square_s + 2 * wide_s + 2 * norm_s
    assert parts["optimizer"] == pytest.approx(24 * per_layer_s, rel=1e-12)


@given(EITHER)
def test_bubble_is_p_minus_1_slots_of_a_stage(case) -> None:
    key, one = case
    parts = TIMERS[key].breakdown(one)
    steady_s = sum(parts[n] for n in ("compute", "recompute", "tp_comm", "pp_p2p"))
    expected_s = (one.pp - 1) / one.num_microbatches * steady_s
    assert parts["bubble"] == pytest.approx(expected_s, rel=1e-12, abs=1e-15)


def test_recompute_is_a_second_forward_pass() -> None:
    # Nearly all FLOPs are GEMMs, whose backward pass has twice the FLOPs of the forward pass.
    parts = time_model("calculon", GPT, ONE_GPU).breakdown(strategy(1, 1, 1, 8, 8))
    assert parts["recompute"] == pytest.approx(parts["compute"] / 3, rel=0.1)


# --- invariants -----------------------------------------------------------------------------------


@given(EITHER)
def test_the_named_parts_sum_to_t(case) -> None:
    key, one = case
    parts = TIMERS[key].breakdown(one)
    assert list(parts) == PARTS
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(TIMERS[key].time_s(one), rel=1e-13)
    assert TIMERS[key].time_s(one) > 0


@pytest.mark.parametrize("key", TIMERS, ids=str)
def test_one_by_one_equals_all_at_once_bit_for_bit(key) -> None:
    many = FEASIBLE[key]
    together_s = TIMERS[key].times_s(many)
    fresh = time_model(key[0], TIMERS[key].model, PAPER)
    assert [fresh.time_s(s) for s in many] == together_s.tolist()
    assert together_s.dtype == np.float64
    assert TIMERS[key].times_s(many[::-1] + many[:1]).tolist() == [
        *together_s[::-1],
        together_s[0],
    ]


def test_no_strategies_take_an_empty_array_of_seconds() -> None:
    assert time_model("calculon", GPT, PAPER).times_s([]).shape == (0,)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_single_gpu_does_not_communicate(model) -> None:
    for one in (strategy(1, 1, 1, mbs, 32) for mbs in (1, 8, 32)):
        parts = time_model("calculon+head", model, ONE_GPU).breakdown(one)
        for name in ("tp_comm", "pp_p2p", "bubble", "dp_comm"):
            assert parts[name] == 0


@given(EITHER, st.floats(1.01, 10))
def test_t_falls_when_bandwidth_rises(case, factor: float) -> None:
    (name, model_name), one = case
    timer = TIMERS[name, model_name]

    def faster(link):
        return link.model_copy(update={"bandwidth_gb_s": link.bandwidth_gb_s * factor})

    inter = time_model(name, timer.model, cluster_spec(inter_node=faster(INTER)))
    intra = time_model(name, timer.model, cluster_spec(intra_node=faster(INTRA)))
    assert (inter.time_s(one) < timer.time_s(one)) == (one.dp * one.pp > 1)
    assert (intra.time_s(one) < timer.time_s(one)) == (one.tp > 1)


def test_between_nodes_costs_more_than_inside_one() -> None:
    one_node = cluster_spec(num_nodes=1, gpus_per_node=4)
    for one in (strategy(4, 1, 1, 1, 8), strategy(1, 1, 4, 1, 8)):
        timers = [time_model("calculon", GPT, cluster) for cluster in (one_node, PAPER)]
        assert timers[0].time_s(one) < timers[1].time_s(one)


# --- what is infeasible ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "one", "words"),
    [
        (GPT, strategy(1, 4, 1, 1, 8), "tp 4 exceeds the 2 GPUs of the intra-node tier"),
        (GPT, strategy(4, 2, 1, 1, 8), "dp*tp*pp = 8 exceeds the 4 GPUs of a100x4-2node"),
        (
            model_spec(num_layers=9),
            strategy(1, 1, 4, 1, 8),
            "num_layers 9 is not divisible by pp 4",
        ),
        (GPT, strategy(1, 1, 1, 1024, 1024), "GB of memory"),
    ],
)
def test_infeasible_strategies_name_their_rule(model, one, words: str) -> None:
    timer = time_model("calculon", model, PAPER)
    reason = timer.why_not(one)
    assert reason is not None
    assert words in reason
    for ask in (timer.time_s, timer.breakdown, lambda s: timer.times_s([s])):
        with pytest.raises(ConfigError, match="infeasible") as error:
            ask(one)
        assert reason in str(error.value)
    assert timer.why_not(one) == reason


def test_an_infeasible_strategy_among_others_spoils_the_batch() -> None:
    with pytest.raises(ConfigError, match="dp1-tp4-pp1"):
        time_model("calculon", GPT, PAPER).times_s(
            [strategy(4, 1, 1, 1, 8), strategy(1, 4, 1, 1, 8)]
        )


def test_on_the_papers_cluster_only_the_tier_rejects_and_only_tp_4() -> None:
    for model in MODELS:
        timer = time_model("calculon+head", model, PAPER)
        for one in ladder_strategies(model):
            assert (timer.why_not(one) is not None) == (one.tp == 4)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'calculon'"):
        time_model("calculom", GPT, PAPER)
    with pytest.raises(ConfigError, match="did you mean 'a100-80g'"):
        time_model("calculon", GPT, cluster_spec(gpu="a100-81gb"))


def test_models_are_listed_with_a_line_each() -> None:
    assert list(time_models()) == [*CALCULONS, "improved"]
    for name, line in time_models().items():
        assert line
        assert time_model(name, LLAMA, PAPER).name == name


def test_bert_shorter_sequences_cost_less() -> None:
    shorter = BERT.model_copy(update={"seq_length": 256})
    one = strategy(2, 2, 1, 4, 32)
    assert time_model("calculon", shorter, PAPER).time_s(one) < time_model(
        "calculon", BERT, PAPER
    ).time_s(one)
