"""T of the improved model: by hand, and by the laws that any time must obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import BERT, GPT, cluster_spec, model_spec
from hypothesis import given
from hypothesis import strategies as st
from improved_cases import (
    CONSTANTS,
    LLAMA_TIED,
    NODES,
    part_of,
    parts_of,
    plan,
    plans,
    row,
    rows,
    time_of,
)

from cona.cost.collectives import Network
from cona.cost.iteration_time import PARTS
from cona.cost.layer_time import WAVE_ELEMENTS, gemm_s

LAYER_PARTS = ("compute", "recompute", "launch", "tp_comm", "cp_comm")
COMMUNICATION = ("tp_comm", "cp_comm", "pp_p2p", "bubble", "dp_comm")
RATES = ("matrix_flop_per_s", "hbm_bytes_per_s", "intra_bytes_per_s", "inter_bytes_per_s")


def one(value: float):
    return np.array([value], float)


# --- by hand --------------------------------------------------------------------------------------


def test_gemm_by_hand() -> None:
    # 1024 tokens, 512 inputs, 2048 outputs: 2^30 products; pairs 2^21 + 2^19 + 2^20
    work = 2**30 + 100 * (2**21 + 2**19 + 2**20) + WAVE_ELEMENTS / 3 * (1024 + 512 + 2048)
    found = gemm_s(one(1024), one(2048), one(512), one(1e12), CONSTANTS)
    assert found == pytest.approx(2 * work / 1e12, rel=1e-12)


@given(st.integers(4, 15), st.integers(4, 15), st.integers(4, 15))
def test_gemm_efficiency_rises_with_every_dimension(a: int, b: int, c: int) -> None:
    def efficiency(m: int, n: int, k: int) -> float:
        seconds = gemm_s(one(2**m), one(2**n), one(2**k), one(1e12), CONSTANTS)
        return float(2 * 2 ** (m + n + k) / 1e12 / seconds[0])

    here = efficiency(a, b, c)
    assert 0 < here < 1
    for larger in ((a + 1, b, c), (a, b + 1, c), (a, b, c + 1)):
        assert efficiency(*larger) > here


NETWORK = Network(
    gpus_per_node=one(8),
    intra_bytes_per_s=one(200e9),
    inter_bytes_per_s=one(10e9),
    intra_latency_s=one(1e-5),
    inter_latency_s=one(2e-5),
)


@pytest.mark.parametrize(
    ("ranks", "stride", "seconds"),
    [
        (1, 1, 0.0),
        (4, 1, 1e9 * 0.75 / 200e9 + 1e-5),  # inside a node
        (4, 8, 1e9 * 0.75 / 10e9 + 3 * 2e-5),  # one rank in each of four nodes
        # two ranks in each of four nodes share the NICs: each sends half of the bytes
        (8, 4, 1e9 * 0.5 / 200e9 + 0.5e9 * 0.75 / 10e9 + 1e-5 + 3 * 2e-5),
    ],
)
def test_gather_where_its_ranks_sit(ranks: int, stride: int, seconds: float) -> None:
    found = NETWORK.gather_s(one(1e9), one(ranks), one(stride))
    assert found == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("span", "seconds"), [(8, 5e-3 + 1e-5), (16, 0.1 + 2e-5)])
def test_message_crosses_nodes_if_the_pipeline_does(span: int, seconds: float) -> None:
    assert NETWORK.p2p_s(one(1e9), one(span)) == pytest.approx(seconds, rel=1e-12)


def test_data_parallel_by_hand() -> None:
    # 24 layers of 12 h^2 + 6 h, table and positions; 2 B each; reduce-scatter and all-gather
    h = 2048
    params = 24 * (12 * h * h + 6 * h) + 51200 * h + 1024 * h
    seconds = 2 * (2 * params * 7 / 8 / (195e9 * 1.25) + 1e-5)
    x = row(plan(8, 1, 1, 1, 1), overlap=0)
    assert part_of(x, "dp_comm") == pytest.approx(seconds, rel=1e-12)


def test_overlap_hides_its_fraction() -> None:
    parts = [part_of(row(plan(8, 1, 1, 8, 1), overlap=flag), "dp_comm") for flag in (0, 1)]
    assert parts[1] == pytest.approx(0.4 * parts[0], rel=1e-12)


def test_overlap_hides_no_more_than_the_backward_pass() -> None:
    slow = row(plan(64, 1, 1, 1, 1), inter_bytes_per_s=1e8)
    window = sum(part_of(slow, name) for name in LAYER_PARTS) * 2 / 3
    without = part_of(replace(slow, overlap=one(0)), "dp_comm")
    assert without - part_of(slow, "dp_comm") == pytest.approx(window, rel=1e-9)


def test_optimizer_by_hand() -> None:
    h = 2048
    params = 24 * (12 * h * h + 6 * h) + 51200 * h + 1024 * h
    seconds = 31 * params / (2039e9 * 0.8)
    assert part_of(row(plan(8, 1, 1, 1, 1)), "optimizer") == pytest.approx(seconds, rel=1e-12)
    sharded = part_of(row(plan(8, 1, 1, 1, 1, zero_stage=1)), "optimizer")
    assert sharded == pytest.approx(seconds / 8, rel=1e-12)


def test_zero_3_gathers_twice_and_scatters_once_per_microbatch() -> None:
    whole = part_of(row(plan(8, 1, 1, 1, 1), overlap=0, intra_latency_s=0), "dp_comm")
    for m in (1, 4):
        x = row(plan(8, 1, 1, 1, m, zero_stage=3), overlap=0, intra_latency_s=0)
        assert part_of(x, "dp_comm") == pytest.approx(3 * m / 2 * whole, rel=1e-12)


def test_launches_bound_a_tiny_layer() -> None:
    tiny = model_spec(num_layers=8, hidden_size=64, ffn_size=256, seq_length=64, num_heads=2)
    x = row(plan(1, 1, 1, 1, 4), tiny, profile="debug")
    slots = sum(part_of(x, name) for name in ("compute", "launch"))
    assert slots == pytest.approx(4 * 8 * 6e-3, rel=1e-3)


def test_full_recomputation_launches_the_forward_pass_again() -> None:
    tiny = model_spec(num_layers=8, hidden_size=64, ffn_size=256, seq_length=64, num_heads=2)
    x = row(plan(1, 1, 1, 1, 4, recompute="full"), tiny, profile="debug")
    slots = sum(part_of(x, name) for name in ("compute", "recompute", "launch"))
    assert slots == pytest.approx(4 * 8 * 6e-3 * 4 / 3, rel=1e-3)


def test_launches_do_not_matter_to_a_large_layer() -> None:
    x = row(plan(1, 8, 1, 8, 1), model_spec(hidden_size=8192, ffn_size=32768, num_heads=64))
    assert part_of(x, "launch") < 1e-3 * part_of(x, "compute")


def test_unfused_attention_moves_its_scores() -> None:
    # 1 x 16 heads x 1024^2 scores x 28 B in each of 24 layers, without products and launches
    free = {"flash_efficiency": 1.0, "gemm_efficiency": 1.0}
    x = row(plan(1, 1, 1, 1, 1), flash=0, matrix_flop_per_s=1e30)
    fused = replace(x, flash=one(1))
    moved = part_of(x, "compute", **free) - part_of(fused, "compute", **free)
    assert moved == pytest.approx(24 * 16 * 1024**2 * 28 / (2039e9 * 0.8), rel=1e-9)


def test_causal_fused_attention_does_half_the_work() -> None:
    def attention(model) -> float:
        long, none = ({"seq": 65536.0}, {"seq": 65536.0, "matrix_flop_per_s": 1e30})
        return sum(
            sign * part_of(row(plan(1, 1, 1, 1, 1), model, **c), "compute", gemm_efficiency=1e9)
            for sign, c in ((1, long), (-1, none))
        )

    both_ways = model_spec(family="bert")
    assert attention(GPT) == pytest.approx(attention(both_ways) / 2, rel=1e-6)


# --- pipeline -------------------------------------------------------------------------------------


@given(rows())
def test_bubble_is_the_other_stages_first_microbatch(x) -> None:
    m, v = x.gbs / (x.dp * x.mbs), x.virtual_stages
    parts = parts_of(x)
    layers = sum(parts[name] for name in LAYER_PARTS)
    expected = (x.pp - 1) * (layers + parts["pp_p2p"]) / (m * v)
    assert parts["bubble"] == pytest.approx(float(expected[0]), rel=1e-9)


@given(plans())
def test_head_is_paid_once_per_microbatch_outside_the_bubble(strategy) -> None:
    deep = part_of(row(strategy), "head")
    flat = replace(row(strategy), pp=one(1), virtual_stages=one(1))
    assert deep == part_of(flat, "head")


def test_slowest_stage_sets_the_rhythm() -> None:
    uneven, even = (part_of(row(plan(1, 1, pp, 1, 8)), "compute") for pp in (5, 4))
    assert uneven == pytest.approx(5 / 6 * even, rel=1e-12)  # 24 layers: 5 a stage, or 6


def test_tied_embedding_is_reduced_between_first_and_last_stage() -> None:
    tied, untied = (row(plan(1, 1, 2, 1, 1), is_tied=flag) for flag in (1, 0))
    message = 51200 * 2048 * 2 / (195e9 * 1.25) + 1e-5
    assert part_of(tied, "dp_comm") == pytest.approx(2 * message, rel=1e-12)
    assert part_of(untied, "dp_comm") == 0


# --- laws -----------------------------------------------------------------------------------------


@given(rows())
def test_parts_sum_to_the_time_and_none_is_negative(x) -> None:
    parts = parts_of(x)
    assert tuple(sorted(parts)) == tuple(sorted(PARTS))
    assert sum(parts.values()) == pytest.approx(time_of(x), rel=1e-12)
    assert min(parts.values()) >= 0


@given(rows(), st.sampled_from(RATES), st.floats(1.1, 100))
def test_time_falls_when_a_rate_rises(x, name: str, factor: float) -> None:
    faster = replace(x, **{name: getattr(x, name) * factor})
    assert time_of(faster) <= time_of(x) * (1 + 1e-12)
    if name in ("matrix_flop_per_s", "hbm_bytes_per_s"):
        assert time_of(faster) < time_of(x)


@given(rows(), st.floats(0.1, 10))
def test_units_a_machine_that_is_faster_in_everything_takes_less_in_proportion(x, factor) -> None:
    scaled = {name: getattr(x, name) * factor for name in RATES}
    waits = ("intra_latency_s", "inter_latency_s")
    scaled |= {name: getattr(x, name) / factor for name in waits}
    launch_s = {name: s / factor for name, s in CONSTANTS.launch_s.items()}
    changed = time_of(replace(x, **scaled), launch_s=launch_s, tp_sync_s=5e-5 / factor)
    assert changed == pytest.approx(time_of(x) / factor, rel=1e-9)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([GPT, BERT]))
def test_one_gpu_does_not_communicate(mbs: int, m: int, model) -> None:
    parts = parts_of(row(plan(1, 1, 1, mbs, m), model))
    assert [parts[name] for name in COMMUNICATION] == [0] * len(COMMUNICATION)


@given(plans(), st.booleans())
def test_recomputation_costs_time_and_only_its_own_part_of_compute(strategy, flash) -> None:
    x = row(strategy, flash=flash, overlap=0)  # what is hidden behind a reduction is free
    shares = {"none": (0, 0), "selective": (1, 0), "full": (1, 1)}
    changed = [
        replace(x, recompute_attention=one(a), recompute_rest=one(r)) for a, r in shares.values()
    ]
    times = [time_of(c) for c in changed]
    assert times[0] < times[1] < times[2]
    assert len({part_of(c, "compute") for c in changed}) == 1
    assert part_of(changed[0], "recompute") == 0
    assert part_of(changed[2], "recompute") < part_of(x, "compute")


@given(plans())
def test_sequence_parallelism_never_costs_time(strategy) -> None:
    without, used = (row(strategy, sequence_parallel=flag) for flag in (0, 1))
    assert time_of(used) <= time_of(without) * (1 + 1e-12)
    if strategy.tp > 1:
        assert part_of(used, "compute") < part_of(without, "compute")


def test_interleaving_divides_the_bubble_and_multiplies_messages() -> None:
    plain, twice = (row(plan(1, 1, 4, 1, 8, virtual_stages=v), intra_latency_s=0) for v in (1, 2))
    layers = sum(part_of(plain, name) for name in LAYER_PARTS)
    assert part_of(twice, "pp_p2p") == pytest.approx(2 * part_of(plain, "pp_p2p"), rel=1e-12)
    saved = part_of(plain, "bubble") - part_of(twice, "bubble")
    assert saved == pytest.approx(3 * layers / 8 / 2, rel=1e-9)


def test_context_parallelism_splits_tokens_and_exchanges_keys() -> None:
    alone, split = (row(plan(1, 1, 1, 1, 1, context_parallel=n), seq=65536) for n in (1, 2))
    assert part_of(split, "compute") == pytest.approx(part_of(alone, "compute") / 2, rel=0.02)
    assert part_of(alone, "cp_comm") == 0
    # keys and values, 2 x 2048 wide, gathered twice and their gradients scattered, 24 layers
    message = 65536 * 4096 * 2 / 2 / (195e9 * 1.25) + 1e-5
    assert part_of(split, "cp_comm") == pytest.approx(24 * 3 * message, rel=1e-12)


def test_fewer_key_value_heads_take_less_time() -> None:
    few, many = (
        replace(row(plan(1, 1, 1, 1, 1), LLAMA_TIED), num_kv_heads=one(n)) for n in (8, 32)
    )
    assert time_of(few) < time_of(many)


def test_gated_layers_have_a_third_matrix() -> None:
    free = {"hbm_bytes_per_s": 1e30}
    times = [part_of(row(plan(1, 1, 1, 8, 1), is_gated=g, **free), "compute") for g in (0, 1)]
    # matrices of 12 h^2 or 16 h^2, beside fused attention of s/2h times 2.5+1 passes
    assert 1.25 < times[1] / times[0] < 1.34


def test_fp8_speeds_up_linear_layers_only() -> None:
    x = row(plan(1, 1, 1, 8, 1))
    fp8 = replace(x, linear_speedup=one(2))
    assert 0.5 * part_of(x, "compute") < part_of(fp8, "compute") < part_of(x, "compute")
    assert part_of(fp8, "head") == part_of(x, "head")


def test_a_tensor_parallel_group_across_nodes_pays_for_it() -> None:
    inside = row(plan(1, 4, 1, 1, 1), cluster=NODES)
    across = row(plan(1, 4, 1, 1, 1), cluster=cluster_spec(num_nodes=4, gpus_per_node=2))
    assert part_of(across, "tp_comm") > 3 * part_of(inside, "tp_comm")
