"""Rows of the four column formats: what they mean, and how a bad file is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cona.cost.gpu_names import canonical, gpu_key, memory_gb
from cona.cost.gpus import GPUS
from cona.cost.rows import TIME_UNITS_S, normalise, read_measured, read_rows
from cona.errors import ConfigError
from cona.specs import ClusterSpec

VTRAIN = (
    "gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n"
    "8,32,4,1024,16,24,1024,2,2,2,250.5\n"
)
MULTI = (
    "params_b,gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n"
    "3.6,64,512,4,3072,32,30,2048,1,64,1,3638\n"
)
CALCULON = (
    "layers,hidden,heads,ffn,seq,system,dp,tp,pp,mbs,gbs,seconds\n"
    "24,2048,16,8192,1024,a100_80g:all_nvlink,2,2,2,2,128,1.5\n"
    "16,2048,32,8192,1024,a100_80g_2gpu_node,1,2,2,1,8,0.25\n"
)
PUBLISHED = (
    "source,group,model,layers,hidden,heads,kv_heads,mlp,ffn,seq,vocab,gpus,gpu_type,"
    "gpus_per_node,precision,tp,pp,dp,vpp,mbs,gbs,recompute,dist,iteration_seconds,notes\n"
    "x,A,GPT 7B,36,4096,32,32,gelu,16384,2048,51200,128,A100-80GB,8,fp16,4,1,32,1,16,512,full,"
    "ddp_overlap,3.5,\n"
    "x,B,Llama3 8B,32,4096,32,8,swiglu,14336,8192,128256,8,H100-96GB-500W,8,bf16,1,1,8,,2,16,"
    "selective_op,fsdp2,2.5,eager\n"
    "x,C,BERT-Large,24,1024,16,16,gelu,4096,512,30592,8,h100_80g,8,bf16,2,2,2,2,4,128,"
    "selective+sp,zero1,0.5,deterministic mode\n"
    "x,D,MPT 3b,32,2560,20,20,gelu,10240,2048,50368,8,H100-80GB,8,fp8,1,1,8,1,10,80,flash,"
    "fsdp_shard_grad_op,1.5,flash attention\n"
)


def frame(text: str, **columns: object) -> pd.DataFrame:
    """The rows of a CSV with columns replaced; None removes one."""
    raw = pd.read_csv(io.StringIO(text))
    for name, value in columns.items():
        raw = raw.drop(columns=name) if value is None else raw.assign(**{name: value})
    return raw


def first(text: str, **columns: object) -> dict[str, object]:
    return normalise(frame(text, **columns), where="rows.csv").to_dict("records")[0]


# --- what the four formats mean -----------------------------------------------------------------


def test_a_vtrain_row_is_an_unrecomputed_gpt_on_a_node_of_eight() -> None:
    row = first(VTRAIN)
    expected = {
        "family": "gpt",
        "num_layers": 24,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "ffn_size": 4096,
        "seq_length": 1024,
        "vocab_size": 51200,
        "gpu": "a100-80g",
        "num_gpus": 8,
        "gpus_per_node": 8,
        "precision": "fp16",
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "cp": 1,
        "virtual_stages": 1,
        "mbs": 4,
        "gbs": 32,
        "recompute": "none",
        "zero_stage": 0,
        "sequence_parallel": False,
        "overlap": False,
        "group": "vtrain-single-node",
        "source_file": "rows.csv",
        "iteration_s": pytest.approx(0.2505),
    }
    assert {name: row[name] for name in expected} == expected
    assert row["iteration_ms"] == 250.5


def test_multi_node_rows_recompute_all() -> None:
    row = first(MULTI)
    assert (row["recompute"], row["group"], row["params_b"]) == ("full", "vtrain-multi-node", 3.6)
    assert row["iteration_s"] == pytest.approx(3.638)


def test_calculon_rows_carry_their_gpu_and_node_in_the_system() -> None:
    rows = normalise(frame(CALCULON), where="rows.csv")
    assert list(rows["gpu"]) == ["a100-80g", "a100-80g"]
    assert list(rows["gpus_per_node"]) == [8, 2]
    assert list(rows["num_gpus"]) == [8, 4]
    assert list(rows["recompute"]) == ["full", "full"]
    assert list(rows["zero_stage"]) == [1, 0]  # sharded only when dp > 1
    assert list(rows["iteration_s"]) == [1.5, 0.25]


def test_published_rows_say_how_they_trained() -> None:
    rows = normalise(frame(PUBLISHED), where="rows.csv")
    columns = {
        "family": ["gpt", "llama", "bert", "gpt"],
        "gpu": ["a100-80g", "h100-80g", "h100-80g", "h100-80g"],
        "gpu_memory_gb": [80.0, 96.0, 80.0, 80.0],
        "precision": ["fp16", "bf16", "bf16", "fp8"],
        "virtual_stages": [1, 1, 2, 1],
        "recompute": ["full", "selective", "selective", "none"],
        "zero_stage": [0, 3, 1, 2],
        "sequence_parallel": [False, False, True, False],
        "overlap": [True, True, False, True],
        "flash_attention": [False, True, False, True],
        "launch_profile": ["tuned", "tuned", "debug", "tuned"],
        "group": ["A", "B", "C", "D"],
        "recompute_written": ["full", "selective_op", "selective+sp", "flash"],
        "iteration_s": [3.5, 2.5, 0.5, 1.5],
    }
    assert {name: list(rows[name]) for name in columns} == columns


def test_gpus_are_counted_or_follow_from_the_degrees() -> None:
    assert (first(VTRAIN, gpus=16)["cp"], first(VTRAIN, gpus=16)["num_gpus"]) == (1, 16)
    assert first(VTRAIN, gpus=None, cp=4)["num_gpus"] == 32
    assert first(VTRAIN, gpus=None)["num_gpus"] == 8


def test_a_cluster_says_what_no_column_says(cluster: ClusterSpec) -> None:
    row = normalise(frame(VTRAIN), where="x", cluster=cluster).iloc[0]
    assert (row["gpu"], row["gpus_per_node"]) == ("h100-80g", 4)
    columns = normalise(frame(PUBLISHED), where="x", cluster=cluster).iloc[0]
    assert (columns["gpu"], columns["gpus_per_node"]) == ("a100-80g", 8)


@pytest.fixture
def cluster() -> ClusterSpec:
    link = {"bandwidth_gb_s": 1, "efficiency": 1, "latency_us": 0}
    return ClusterSpec.model_validate(
        {"name": "x", "description": "x", "gpu": "h100-80g", "num_nodes": 1, "gpus_per_node": 4}
        | {"gpu_memory_gb": 80, "intra_node": link, "inter_node": link, "source": "x"}
    )


def test_without_a_column_of_times_every_time_is_unknown() -> None:
    rows = normalise(frame(CALCULON, seconds=None), where="x")
    assert rows["iteration_s"].isna().all()


@settings(max_examples=25)
@given(seconds=st.floats(1e-6, 1e6), name=st.sampled_from(sorted(TIME_UNITS_S)))
def test_every_time_column_is_turned_into_seconds(seconds: float, name: str) -> None:
    raw = frame(VTRAIN, iteration_ms=None).assign(**{name: seconds / TIME_UNITS_S[name]})
    assert normalise(raw, where="x")["iteration_s"].iloc[0] == pytest.approx(seconds, rel=1e-12)


@settings(max_examples=25)
@given(order=st.permutations(range(4)))
def test_rows_stay_in_the_order_of_the_file(order: list[int]) -> None:
    raw = frame(PUBLISHED).iloc[list(order)].reset_index(drop=True)
    rows = normalise(raw, where="x")
    assert list(rows["group"]) == [("A", "B", "C", "D")[i] for i in order]
    assert set(raw.columns) - {"recompute"} <= set(rows.columns)


# --- files that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden": None, "hiden": 1}, "column 'hidden' is missing: did you mean 'hiden'?"),
        ({"iteration_ms": 0}, "line 2: iteration_ms = 0: a time must be above 0"),
        ({"iteration_ms": -3.5}, "line 2: iteration_ms = -3.5"),
        ({"iteration_ms": np.nan}, "line 2: iteration_ms = nan"),
        ({"iteration_ms": np.inf}, "line 2: iteration_ms = inf"),
        ({"iteration_ms": "soon"}, "line 2: iteration_ms = soon"),
        ({"layers": 0}, "line 2: layers = 0: must be a whole number of at least 1"),
        ({"layers": 2.5}, "line 2: layers = 2.5"),
        ({"tp": -1}, "line 2: tp = -1"),
        ({"mbs": "four"}, "line 2: mbs = four"),
        ({"gbs": np.nan}, "line 2: gbs = nan"),
        ({"vocab": "many"}, "line 2: vocab = many"),
        ({"precision": "fp4"}, "unknown precision 'fp4': did you mean 'fp"),
        ({"recompute": "ful"}, "unknown recompute 'ful': did you mean 'full'?"),
        ({"dist": "pipeline"}, "unknown way 'pipeline'"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_rule(change: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match="^rows.csv") as error:
        normalise(frame(VTRAIN, **change), where="rows.csv")
    assert sentence in str(error.value)


def test_the_line_is_that_of_the_file() -> None:
    raw = frame(PUBLISHED, iteration_seconds=[1.0, 2.0, 0.0, 1.0])
    with pytest.raises(ConfigError, match="line 4: iteration_seconds = 0"):
        normalise(raw, where="x")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (VTRAIN.split("\n")[0].encode(), "no row below the header"),
        (b"a,b\n1,2,3\n4,5\n6,7,8,9\n", "not a CSV"),
        (b"\xff\xfe\x00a,b", "not a CSV"),
        (VTRAIN.replace(".5\n", ".5,\n").encode(), "more cells than its header"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_rows(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="directory"):
        read_rows(tmp_path)


def test_a_file_is_read_as_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(VTRAIN, encoding="utf-8")
    assert read_rows(path)["source_file"].iloc[0] == str(path)


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "text", "name", "value"),
    [
        ("notes", "grad accum 2; flash attention; no bias", "flash_attention", True),
        ("notes", "FlashAttention-2", "flash_attention", True),
        ("notes", "no bias; no flash attention", "flash_attention", False),
        ("notes", "without any flash", "flash_attention", False),
        ("notes", "flash attention off", "flash_attention", False),
        ("notes", "flashy", "flash_attention", False),
        ("notes", "deterministic; launch-bound", "launch_profile", "debug"),
        ("notes", "not deterministic", "launch_profile", "tuned"),
        ("notes", "nondeterministic", "launch_profile", "tuned"),
        ("notes", "debugging aid", "launch_profile", "tuned"),
        ("dist", "zero1_overlap", "overlap", True),
        ("dist", "zero1_no_overlap", "overlap", False),
        ("dist", "fsdp_full_shard", "overlap", True),
        ("dist", "fsdp_no_overlap", "overlap", False),
        ("dist", "FSDP2", "zero_stage", 3),
        ("recompute", "selective+sp", "sequence_parallel", True),
        ("recompute", "full+split", "sequence_parallel", False),
        ("mlp", "no swiglu", "family", "gpt"),
        ("mlp", "SwiGLU", "family", "llama"),
    ],
)
def test_words_count_whole_and_not_denied(column: str, text: str, name: str, value: object) -> None:
    row = first(VTRAIN, gpu_type="A100-80GB", **{column: text})
    assert row[name] == value


@pytest.mark.parametrize("dist", ["zero12", "no_fsdp", "fsdpx"])
def test_ways_that_only_begin_like_one_are_unknown(dist: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown way '{dist}'"):
        first(VTRAIN, dist=dist)


# --- rows that are kept with a reason -----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"precision": "fp4"}, "column 'precision': unknown precision 'fp4'"),
        ({"recompute": "ful"}, "column 'recompute': unknown recompute 'ful'"),
        ({"dist": "pipeline"}, "column 'dist': unknown way 'pipeline'"),
        ({"layers": ""}, "layers = an empty cell: must be a whole number of at least 1"),
        ({"layers": "2.5"}, "layers = 2.5: must be"),
        ({"kv_heads": "0"}, "kv_heads = 0: must be"),
        ({"gbs": "1e19"}, "gbs = 1e19: must be a whole number of at least 1 and at most 1e+09"),
        ({"gbs": "10000000000000000001"}, "gbs = 10000000000000000001: must be"),
        ({"gpu_type": ""}, "gpu_type = an empty cell: must name one, e.g. A100-80GB"),
        ({"system": ""}, "system = an empty cell: must name one"),
        ({"system": "a100_80g_0gpu_node"}, "system = a100_80g_0gpu_node: a node has at least 1"),
        ({"gpus": None, "tp": "100000", "dp": "100000"}, "dp*tp*pp*cp exceeds 1e+09 GPUs"),
        ({"iteration_ms": ""}, ""),
        ({"iteration_ms": "soon"}, ""),
        ({"iteration_ms": 0}, ""),
    ],
)
def test_a_lenient_reader_keeps_a_bad_cell_as_its_rows_problem(change: dict, problem: str) -> None:
    two = pd.concat([frame(VTRAIN)] * 2, ignore_index=True).astype(str)
    fine = {"gpu_type": "A100-80GB", "system": "a100_80g:all_nvlink"}
    for name, cell in change.items():
        two = two.drop(columns=name) if cell is None else two
        default = fine.get(name, two[name].iloc[1] if name in two else "")
        if cell is not None:
            two[name] = [cell, default]
    rows = normalise(two, where="rows.csv", is_lenient=True)
    assert rows["problem"].iloc[0].startswith(problem)
    assert bool(rows["problem"].iloc[0]) == bool(problem)
    assert rows["problem"].iloc[1] == ""


# --- whose file it is ---------------------------------------------------------------------------


def test_published_results_without_their_gpus_are_refused(cluster: ClusterSpec) -> None:
    raw = frame(PUBLISHED, gpu_type=None).assign(params_b=7.5)
    for one in (raw, raw.drop(columns="iteration_seconds")):
        with pytest.raises(ConfigError, match="column 'gpu_type' is missing: published"):
            normalise(one, where="x")
        rows = normalise(one, where="x", cluster=cluster)
        assert set(rows["gpu"]) == {"h100-80g"}
        assert set(rows["launch_profile"]) == {"tuned", "debug"}


def test_a_models_answers_are_not_measured(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_text(VTRAIN, encoding="utf-8")
    paths[1].write_text(CALCULON, encoding="utf-8")
    rows, answers = read_measured(paths)
    assert (len(rows), answers) == (1, [paths[1]])
    with pytest.raises(ConfigError, match="a model's answers; expected a file of measured times"):
        read_measured(paths[1:])


# --- GPU names ----------------------------------------------------------------------------------


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """A GPU type and another way to write it: case, '-' or '_', a final B."""
    key = draw(st.sampled_from(sorted(GPUS)))
    text = "".join(draw(st.sampled_from((c.lower(), c.upper()))) for c in key)
    text = text.replace("-", draw(st.sampled_from(("-", "_", ""))))
    return key, text + draw(st.sampled_from(("", "B", "b"))) * text.lower().endswith("g")


@given(spelling=spellings())
def test_a_gpu_matches_without_case_dashes_and_a_final_b(spelling: tuple[str, str]) -> None:
    key, text = spelling
    assert gpu_key(text) == key
    assert canonical(text) == canonical(key)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("H100-96GB-500W", "h100-80g"),
        ("A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("h200-141gb", "h200"),
        ("A100", "a100-80g"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("V100", "v100-32g"),
    ],
)
def test_other_names_take_the_model_with_the_nearest_memory(text: str, key: str) -> None:
    known = ("a100-80g", "a100-40g", "h100-80g", "h200", "v100-32g", "v100-16g")
    assert gpu_key(text, known) == key


def test_an_unknown_gpu_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="unknown GPU 'P100-16GB': valid: a100-80g, h100-80g"):
        gpu_key("P100-16GB", ("a100-80g", "h100-80g"))
    assert first(VTRAIN, gpu_type="P100-16GB")["gpu"] == "P100-16GB"  # predict gives the reason


@pytest.mark.parametrize(("text", "memory"), [("A100-80GB", 80), ("a100_40g", 40), ("h200", None)])
def test_the_memory_in_a_name(text: str, memory: float | None) -> None:
    assert memory_gb(text) == memory
    assert memory_gb("a100_2gpu_node") is None
