"""Clusters: the shipped files agree with the GPUs' data sheets; a user's errors are explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cona import config
from cona.cost import time_model
from cona.cost.gpus import gpu
from cona.errors import ConfigError
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy

SHIPPED = config.names(ClusterSpec)


def load(name: str) -> ClusterSpec:
    return config.load(ClusterSpec, name)


def test_the_classes_of_the_issue_are_there() -> None:
    gpus = {load(name).gpu for name in SHIPPED}
    assert gpus == {"a100-40g", "a100-80g", "h100-80g", "h200", "b200", "v100-32g", "cpu"}
    assert {"a100-pcie", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"} < set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_cluster_does_not_contradict_the_data_sheet(name: str) -> None:
    cluster = load(name)
    sheet = gpu(cluster.gpu).sheet
    assert cluster.gpu_memory_gb == sheet.memory_gb
    is_nvlink = name != "a100-pcie"
    assert (cluster.intra_node.bandwidth_gb_s == sheet.nvlink_gb_s) == is_nvlink
    is_one_machine = cluster.gpu == "cpu"
    if is_one_machine:
        assert cluster.inter_node == cluster.intra_node
    else:
        assert cluster.inter_node.bandwidth_gb_s < cluster.intra_node.bandwidth_gb_s
    assert len(cluster.source) > 40


def test_every_cluster_can_be_priced() -> None:
    model = config.load(ModelSpec, "gpt3-1.3b")
    one = Strategy(dp=2, tp=1, pp=1, mbs=4, gbs=8)
    large = [name for name in SHIPPED if load(name).gpu != "cpu"]
    times = {name: time_model("calculon", model, load(name)).time_s(one) for name in large}
    assert times["a100-pcie"] > times["dgx-a100"] > times["dgx-h100"] > times["dgx-h200"]
    assert times["dgx-h200"] > times["dgx-b200"]


@given(st.sampled_from(SHIPPED), st.integers(1, 8_192))
def test_any_number_of_nodes(name: str, num_nodes: int) -> None:
    one, many = load(name), load(f"{name}@{num_nodes}")
    assert many.num_gpus == num_nodes * one.gpus_per_node
    assert many.name == f"{name}@{num_nodes}"
    assert many.model_copy(update={"name": one.name, "num_nodes": one.num_nodes}) == one


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dgx-h100@0", r"dgx-h100@0: num_nodes = '0': input should be greater than 0"),
        ("dgx-h100@-2", "greater than 0"),
        ("dgx-h100@many", "num_nodes = 'many'.*valid integer"),
        ("dgx-h10@2", "unknown cluster 'dgx-h10': did you mean 'dgx-h100'"),
    ],
)
def test_a_wrong_number_of_nodes_is_explained(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(name)


# --- a user's own ---------------------------------------------------------------------------------


def described(tmp_path: Path, **changes: object) -> str:
    content = load("dgx-a100").model_dump(mode="json") | {"name": "mine"}
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        owner = content
        for parent in parents:
            owner = owner[parent]
        if value is None:
            del owner[last]
        else:
            owner[last] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_users_file_is_loaded_from_its_path(tmp_path: Path) -> None:
    path = described(tmp_path, num_nodes=3)
    assert load(path).num_gpus == 24
    assert load(f"{path}@5").num_gpus == 40


def test_an_at_sign_in_a_folders_name_is_no_number_of_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "me@home"
    folder.mkdir()
    assert load(described(folder)).name == "mine"


@pytest.mark.parametrize("key", sorted(ClusterSpec.model_fields))
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"mine.yaml: key '{key}' is missing"):
        load(described(tmp_path, **{key: None}))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("num_nodes", 0, "num_nodes = 0: input should be greater than 0"),
        ("gpus_per_node", -8, "gpus_per_node = -8: input should be greater than 0"),
        ("gpu_memory_gb", -80, "gpu_memory_gb = -80: input should be greater than 0"),
        ("intra_node__bandwidth_gb_s", -1, r"intra_node.bandwidth_gb_s = -1: .*greater than 0"),
        ("inter_node__latency_us", -5, r"inter_node.latency_us = -5: .*greater than or equal to 0"),
        ("inter_node__efficiency", 1.5, r"inter_node.efficiency = 1.5: .*less than or equal to 1"),
        ("intra_node__efficiency", None, "key 'intra_node.efficiency' is missing"),
        ("intra_node__bandwith_gb_s", 1, "'intra_node.bandwith_gb_s': did you mean 'bandwidth_gb"),
    ],
)
def test_a_wrong_field_is_explained(tmp_path: Path, key: str, value: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(described(tmp_path, **{key: value}))


def test_an_unknown_gpu_is_answered_with_the_nearest(tmp_path: Path) -> None:
    cluster = load(described(tmp_path, gpu="h100-81gb"))
    with pytest.raises(ConfigError, match="unknown GPU 'h100-81gb': did you mean 'h100-80g'"):
        time_model("calculon", config.load(ModelSpec, "gpt3-1.3b"), cluster)
