"""GPUs and links, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from cost_cases import GPT, INTER, INTRA, ONE_NODE, PAPER

from cona.cost.gpus import GPUS, gpu
from cona.cost.layer import Layer
from cona.cost.network import Network
from cona.errors import ConfigError


def one(value: float):
    return np.array([value], float)


def test_one_linear_on_an_a100() -> None:
    # 8 x 1024 tokens through 2048 x 2048: 68.7 GFLOP at 90 % of 312 TFLOP/s; inputs, outputs and
    # weights are 75.5 MB in fp16 at 75 % of 2048 GB/s
    layer = Layer(model=GPT, gpu=gpu("a100-80g"), mbs=one(8), tp=one(1))
    flop_s, memory_s = 68719476736 / 280.8e12, 75497472 / 1536e9
    assert layer.linear_s(one(2048), one(2048)) == pytest.approx(flop_s + memory_s, rel=1e-12)


def test_one_linear_on_an_h100() -> None:
    layer = Layer(model=GPT, gpu=gpu("h100-80g"), mbs=one(8), tp=one(1))
    flop_s, memory_s = 68719476736 / 900e12, 75497472 / 2304e9
    assert layer.linear_s(one(2048), one(2048)) == pytest.approx(flop_s + memory_s, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "amount", "rate"),
    [
        ("matrix", 0.999e9, 31.2e12),
        ("matrix", 1e9, 187.2e12),  # a threshold belongs to the step that it starts
        ("matrix", 16e9, 280.8e12),
        ("matrix", 128e9, 296.4e12),
        ("vector", 0.999e9, 7.8e12),
        ("vector", 1e9, 39e12),
        ("vector", 16e9, 74.1e12),
        ("memory", 0.999e6, 614.4e9),
        ("memory", 1e6, 1228.8e9),
        ("memory", 10e6, 1536e9),
        ("memory", 100e6, 1843.2e9),
    ],
)
def test_efficiency_steps_of_an_a100(unit: str, amount: float, rate: float) -> None:
    seconds = getattr(gpu("a100-80g"), unit).time_s(one(amount))
    assert seconds == pytest.approx(amount / rate, rel=1e-12)


def test_nothing_takes_no_time() -> None:
    assert gpu("a100-80g").gemm_s(one(0), one(0)) == 0


def test_every_gpu_states_its_source() -> None:
    others = {"v100-32g", "v100-16g", "cpu"}
    assert set(GPUS) == {"a100-40g", "a100-80g", "h100-80g", "h200", "b200"} | others
    assert all(g.source for g in GPUS.values())
    with pytest.raises(ConfigError, match="unknown GPU 'h100': did you mean 'h100-80g'"):
        gpu("h100")


def test_attention_matrices_are_counted_whole() -> None:
    # 1 sample x 15 heads over 2 ranks: floor(7.5)
    model = GPT.model_copy(update={"num_heads": 15})
    layer = Layer(model=model, gpu=gpu("a100-80g"), mbs=one(1), tp=one(2))
    assert layer.score_heads == 7


# --- links ----------------------------------------------------------------------------------------


def test_between_nodes_each_byte_moves_once_whatever_the_ranks() -> None:
    tier = Network.of(PAPER).dp
    for ranks in (2, 4):
        assert tier.all_reduce_s(one(45e6), one(ranks)) == pytest.approx(2.02e-3, rel=1e-12)
        assert tier.gather_s(one(45e6), one(ranks)) == pytest.approx(2.02e-3, rel=1e-12)


@pytest.mark.parametrize(("ranks", "moved"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_inside_a_node_an_all_reduce_is_a_ring(ranks: int, moved: float) -> None:
    tier = Network.of(ONE_NODE).tp
    expected_s = 10e-6 + moved * 1e-3  # 195 MB take 1 ms at 65 % of 300 GB/s
    assert tier.all_reduce_s(one(195e6), one(ranks)) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(("ranks", "moved"), [(2, 0.75), (4, 1.125), (8, 1.3125)])
def test_inside_a_node_a_gather_moves_three_quarters_of_a_ring(ranks: int, moved: float) -> None:
    tier = Network.of(ONE_NODE).dp
    assert tier.gather_s(one(195e6), one(ranks)) == pytest.approx(10e-6 + moved * 1e-3, rel=1e-12)


def test_tp_stays_in_the_node_and_the_rest_crosses_nodes() -> None:
    network = Network.of(PAPER)
    assert (network.tp.link, network.tp.size) == (INTRA, 2)
    assert network.pp == network.dp
    assert (network.dp.link, network.dp.size) == (INTER, 4)
    alone = Network.of(ONE_NODE)
    assert alone.tp == alone.pp == alone.dp
    assert (alone.dp.link, alone.dp.size) == (INTRA, 8)


def test_calculons_figures_stay_its_own_beside_the_data_sheet() -> None:
    # Calculon rounds HBM to 2,048 and 3,072 GB/s and an H100 to 1,000 TFLOP/s.
    a100, h100 = gpu("a100-80g"), gpu("h100-80g")
    assert (a100.memory.peak_per_s, a100.sheet.hbm_gb_s) == (2048e9, 2039)
    assert (h100.memory.peak_per_s, h100.sheet.hbm_gb_s) == (3072e9, 3350)
    assert (h100.matrix.peak_per_s, h100.sheet.bf16_tflops) == (1000e12, 989.4)


def test_a_gpu_that_calculon_does_not_know_has_the_peaks_of_its_data_sheet() -> None:
    h200 = gpu("h200")
    assert h200.memory.peak_per_s == 4800e9
    assert h200.matrix.peak_per_s == 989.4e12
    assert h200.memory.efficiencies == gpu("a100-80g").memory.efficiencies
    assert "ASSUMED" in h200.source


@pytest.mark.parametrize("name", sorted(GPUS))
def test_data_sheets_are_plausible(name: str) -> None:
    sheet = gpu(name).sheet
    assert ("NVIDIA" in sheet.source) != ("ASSUMED: orders of magnitude" in sheet.source)
    assert sheet.fp8_tflops is None or sheet.fp8_tflops == pytest.approx(
        2 * sheet.bf16_tflops, rel=1e-3
    )
    assert sheet.vector_tflops < sheet.bf16_tflops
    assert sheet.nvlink_gb_s < sheet.hbm_gb_s
    assert f"{sheet.memory_gb:g}" in sheet.source or name in ("b200", "cpu")
