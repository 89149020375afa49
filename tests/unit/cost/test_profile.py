"""Costs from a profile: what the files say, and how malformed ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_cases import HEADER, SIZES, facts, lines, write_profile

from cona.cost.costs import Costs
from cona.cost.measured_costs import embedding_time, is_known, layer_memory, smallest_mbs
from cona.cost.profile import ProfileCosts
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques


@pytest.fixture
def costs(tmp_path: Path) -> ProfileCosts:
    return ProfileCosts(write_profile(tmp_path), 4)


def test_times_are_those_of_the_rows(costs: ProfileCosts) -> None:
    assert costs.layer_time(0, 1, 1, "forward") == pytest.approx(0.010)
    assert costs.layer_time(3, 2, 2, "backward") == pytest.approx(0.020)
    assert costs.head_time(1, 2, "both") == pytest.approx(0.030)
    assert costs.embedding_time(2, 1, "both") == pytest.approx(0.0015)
    assert costs.forward_backward_time(2, 1) == pytest.approx(0.070)
    assert costs.batch_generator_time() == 0.0005
    assert costs.optimizer(2, 3) == pytest.approx(0.002)


def test_a_profile_is_costs_and_more(costs: ProfileCosts) -> None:
    prices: Costs = costs
    assert (costs.tps, costs.mbss, smallest_mbs(prices)) == ((1, 2), (1, 2), 1)
    assert is_known(prices, 2, 2)
    assert not is_known(prices, 4, 1)
    assert embedding_time(prices, 1, 1, "forward") == pytest.approx(0.001)
    sizes = [
        layer_memory(prices, layer, 2, 1, num_layers=4, techniques=Techniques())
        for layer in ("embedding", 2, "head")
    ]
    assert sizes == [25e6, 50e6, 25e6]


def test_memory_is_the_sum_of_the_stages_rows(costs: ProfileCosts) -> None:
    strategy = Strategy(dp=1, tp=1, pp=2, mbs=1, gbs=8)
    assert costs.memory(0, strategy) == costs.memory(1, strategy) == 250e6
    assert costs.memory(0, Strategy(dp=2, tp=2, pp=1, mbs=1, gbs=8)) == 250e6
    with pytest.raises(ConfigError, match="4 is not divisible by pp 3"):
        costs.memory(0, Strategy(dp=1, tp=1, pp=3, mbs=1, gbs=8))
    with pytest.raises(ConfigError, match="has stages 0 to 1"):
        costs.memory(2, strategy)


def test_links_and_messages(tmp_path: Path) -> None:
    inter = {"bandwidth_gb_s": 4e-6, "latency_us": 10}
    costs = ProfileCosts(write_profile(tmp_path, inter_node=inter), 4)
    assert costs.link("intra_node").bandwidth_gb_s * costs.link("intra_node").efficiency == 8e-6
    assert costs.p2p(4000) == pytest.approx(1 + 10e-6)
    assert ProfileCosts(tmp_path, 2).p2p(4000) == pytest.approx(0.5)
    assert costs.allreduce(4000, 2) == pytest.approx(0.5)
    assert costs.allreduce(4000, 4) == pytest.approx(1.5 + 10e-6)
    assert costs.allreduce(4000, 1) == 0
    with pytest.raises(ConfigError, match="did you mean 'intra_node'"):
        costs.link("intra")


def test_parameters_are_those_of_the_smallest_size(tmp_path: Path) -> None:
    changed = [line.replace(",1600", ",800") if ",2," in line else line for line in lines(SIZES)]
    costs = ProfileCosts(write_profile(tmp_path, changed), 4)
    assert [costs.params_bytes(0), costs.params_bytes("head")] == [1600, 800]


def test_the_shape_is_a_model(costs: ProfileCosts) -> None:
    model = costs.model
    assert (model.num_layers, model.num_kv_heads, model.vocab_size) == (4, 4, 100)
    assert model.name.startswith("test_the_shape")
    assert not model.tied_embeddings  # nothing is subtracted from what the rows say


def test_forward_and_backward_may_be_one_number(tmp_path: Path) -> None:
    costs = ProfileCosts(write_profile(tmp_path, forward_backward_ms=5), 4)
    assert costs.forward_backward_time(1, 1) == costs.forward_backward_time(2, 2) == 0.005


def test_what_was_not_measured_is_named(costs: ProfileCosts, tmp_path: Path) -> None:
    expected = r"tp 1, mbs 4 was not measured \(measured: tp 1: mbs 1, 2; tp 2: mbs 1, 2\)"
    with pytest.raises(ConfigError, match=expected):
        costs.layer_time(0, 1, 4, "both")
    with pytest.raises(ConfigError, match="forward_backward_ms has no '4,1'; it has '1,1'"):
        costs.forward_backward_time(4, 1)
    with pytest.raises(ConfigError, match="has transformer layers 0 to 3"):
        costs.layer_time(4, 1, 1, "both")
    with pytest.raises(ConfigError, match="unknown part 'all'"):
        costs.layer_time(0, 1, 1, "all")
    with pytest.raises(ConfigError, match="unknown layer 'heat': did you mean 'head'"):
        costs.params_bytes("heat")


GOOD = lines(SIZES)


@pytest.mark.parametrize(
    ("csv", "sentence"),
    [
        ([HEADER], "no row; expected layers 0 to 5"),
        ([], "column 'layer' is missing"),
        ([HEADER.replace("memory_mb", "memory"), *GOOD[1:]], "column 'memory_mb' is missing: did"),
        ([*GOOD, GOOD[1]], "layer 0 at tp 1, mbs 1 is twice"),
        (GOOD[:-1], "layer 5 is missing at tp 2, mbs 2"),
        ([*GOOD, "6,1,1,1,1,1,1"], "layer 6: profile.yaml has layers 0 to 5"),
        ([*GOOD, "0,4,1,nan,1,1,1"], ":26: forward_ms = 'nan': expected a number of at least 0"),
        ([*GOOD, "0,4,1,fast,1,1,1"], "forward_ms = 'fast'"),
        ([*GOOD, "0,4,1,-1,1,1,1"], "forward_ms = '-1'"),
        ([*GOOD, "0,0,1,1,1,1,1"], "tp = '0': expected a whole number of at least 1"),
        ([*GOOD, "0,1.5,1,1,1,1,1"], "tp = '1.5': expected a whole number"),
        ([*GOOD, "0,4,1,1,1,1"], "params_bytes = 'None'"),
        ([*GOOD, "0,4,1,1,inf,1,1"], "backward_ms = 'inf'"),
        ([*GOOD, "0,4,1,1,1,1,1,9"], "more than 7 cells"),
        ([*GOOD, "0,4,1,1,1,1," + "9" * 200_000], "not CSV: field larger than field limit"),
        ([*GOOD, "0,4,1,1\0,1,1,1"], "not text: it holds zero bytes"),
        ([HEADER, *(f"{i},1,1,0,0,1,1" for i in range(6))], "no layer takes any time at tp 1"),
    ],
)
def test_malformed_rows_are_refused(tmp_path: Path, csv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        ProfileCosts(write_profile(tmp_path, csv), 4)
    assert sentence in str(error.value)
    assert "layers.csv" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"optimizer_ms": None}, "key 'optimizer_ms' is missing"),
        ({"optimiser_ms": 1}, "unknown key 'optimiser_ms': did you mean 'optimizer_ms'"),
        ({"gpu_memory_gb": 0}, "gpu_memory_gb = 0"),
        ({"forward_backward_ms": {"one": 1}}, "forward_backward_ms"),
        ({"model": facts()["model"] | {"num_heads": 3}}, "is not divisible by num_heads 3"),
        ({"intra_node": {"bandwidth_gb_s": 1, "efficiency": 1}}, "unknown key"),
        ({"model": facts()["model"] | {"num_layers": 4000}}, "layer 6 is missing at tp 1"),
    ],
)
def test_a_malformed_profile_is_refused(tmp_path: Path, changes: dict, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        ProfileCosts(write_profile(tmp_path, **changes), 4)
    assert sentence in str(error.value)


def test_a_profile_is_read_anew(tmp_path: Path) -> None:
    before = ProfileCosts(write_profile(tmp_path), 4)
    after = ProfileCosts(write_profile(tmp_path, optimizer_ms=99), 4)
    assert (before.optimizer(1, 1), after.optimizer(1, 1)) == pytest.approx((0.012, 0.099))


def test_a_value_that_yaml_cannot_read_is_refused(tmp_path: Path) -> None:
    (write_profile(tmp_path) / "profile.yaml").write_text("optimizer_ms: 2020-99-99\n")
    with pytest.raises(ConfigError, match=r"profile.yaml: not YAML: month must be"):
        ProfileCosts(tmp_path, 4)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        ProfileCosts(tmp_path / "nowhere", 4)
    with pytest.raises(ConfigError, match=r"profile.yaml: No such file"):
        ProfileCosts(tmp_path, 4)
    (write_profile(tmp_path) / "layers.csv").unlink()
    with pytest.raises(ConfigError, match=r"layers.csv: No such file"):
        ProfileCosts(tmp_path, 4)
