"""`cona plan`: what it answers, how it refuses, and how soon."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from test_cli import SLOW_TO_IMPORT
from test_hf import LLAMA, write

from cona import cli, config
from cona.cli.terminal import table
from cona.cost import time_model
from cona.planning import DEFAULT_PRESET
from cona.search import best
from cona.specs import ClusterSpec, LadderSpec, ModelSpec
from cona.strategy import Strategy, StrategySpace

MODEL, CLUSTER = "gpt3-1.3b", "a100x4-2node"
BASE = ("plan", "--model", MODEL, "--cluster", CLUSTER)
HEAD = ("--preset", "calculon+head")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def planned(*arguments: str) -> dict:
    done = invoke(*BASE, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def facts(kind: type, name: str, folder: Path, **changes: object) -> str:
    """Write a model or a cluster with changed keys to a YAML file; None removes a key."""
    content = config.load(kind, name).model_dump(mode="json") | changes
    path = folder / "changed.yaml"
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(yaml.safe_dump(kept), encoding="utf-8")
    return str(path)


# --- what plan answers --------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["calculon", "calculon+head", "improved"])
def test_the_first_is_what_exhaustive_search_finds(preset: str) -> None:
    model, cluster = config.load(ModelSpec, MODEL), config.load(ClusterSpec, CLUSTER)
    space = StrategySpace(model=model, num_gpus=4, ladder=LadderSpec())
    winner, seconds = best(space.at(64), time_model(preset, model, cluster))
    rung = planned("--gbs", "64", "--preset", preset)["rungs"][0]
    assert rung["strategies"][0]["strategy"] == str(winner)
    assert rung["strategies"][0]["iteration_s"] == pytest.approx(seconds, rel=1e-12)


def test_the_best_model_is_the_default() -> None:
    assert planned("--gbs", "64")["preset"] == DEFAULT_PRESET


@pytest.mark.parametrize(("cluster", "is_calibrated"), [("dgx-h100", True), ("dgx-h200", False)])
def test_an_uncalibrated_gpu_is_labelled(cluster: str, is_calibrated: bool) -> None:
    arguments = ("plan", "--model", MODEL, "--cluster", cluster, "--gbs", "8")
    assert json.loads(invoke(*arguments, "--json").stdout)["calibrated"] is is_calibrated
    assert ("uncalibrated for h200" in invoke(*arguments).stdout) is not is_calibrated
    assert planned("--gbs", "8", *HEAD)["calibrated"] is None


def test_ranked_strategies_are_sorted_and_add_up() -> None:
    found = planned("--gbs", "64", "--top", "7", *HEAD)["rungs"][0]["strategies"]
    times = [one["iteration_s"] for one in found]
    assert len(found) == 7
    assert times == sorted(times)
    for one in found:
        assert sum(one["breakdown_s"].values()) == pytest.approx(one["iteration_s"], rel=1e-9)
        assert one["samples_per_s"] == pytest.approx(64 / one["iteration_s"])
        assert one["memory_bytes"] > 0
        assert "% of the iteration" in one["bottleneck"]
        assert Strategy.parse(one["strategy"]).num_gpus == 4


def test_the_text_shows_what_the_json_holds() -> None:
    lines = invoke(*BASE, "--gbs", "64", "--top", "3", *HEAD).stdout.splitlines()
    content = planned("--gbs", "64", "--top", "3", *HEAD)["rungs"][0]
    for rank, one in enumerate(content["strategies"], start=1):
        line = next(text for text in lines if text.startswith(f"{rank}  dp"))
        assert one["strategy"] in line
        assert f"{one['iteration_s']:.4g}" in line
        assert line.endswith(one["bottleneck"])
    assert lines[-1].startswith(f"Next: {content['next']['sentence']}")
    assert "modelled by calculon+head" in lines[0]


def test_breakdown_in_percent_adds_up_to_a_hundred() -> None:
    text = invoke(*BASE, "--gbs", "64", "--top", "4", *HEAD).stdout
    shares = text.split("Breakdown in % of the iteration:")[1].split("Next:")[0].split("\n")[3:-2]
    assert len(shares) == 4
    for line in shares:
        assert sum(map(float, line.split()[1:])) == pytest.approx(100, abs=0.5)


def test_the_ladder_is_the_best_of_each_batch_size_and_links_them() -> None:
    rungs = planned("--ladder", *HEAD)["rungs"]
    assert [rung["gbs"] for rung in rungs] == [8, 16, 32, 64, 128, 256]
    single = planned("--gbs", "64", *HEAD)["rungs"][0]
    assert rungs[3]["strategies"] == single["strategies"][:1]
    assert rungs[3]["next"] == single["next"]
    assert rungs[3]["next"]["strategy"] == rungs[4]["strategies"][0]["strategy"]
    assert rungs[-1]["next"] is None
    text = invoke(*BASE, "--ladder", *HEAD).stdout
    assert all(rung["strategies"][0]["strategy"] in text for rung in rungs)


def test_the_ladder_may_start_and_end_elsewhere() -> None:
    rungs = planned("--ladder", "--gbs", "32", "--gbs-max", "64", *HEAD)["rungs"]
    assert [rung["gbs"] for rung in rungs] == [32, 64]


def test_a_rung_that_cannot_run_says_why(tmp_path: Path) -> None:
    """Thirty-two GPUs, one of dp, two layers: gbs 1 leaves tp 16, which no node can hold."""
    model = facts(ModelSpec, MODEL, tmp_path, num_layers=2)
    arguments = ("--model", model, "--cluster", "dgx-a100@4", "--ladder", "--gbs", "1")
    done = invoke("plan", *arguments, "--gbs-max", "2", "--json", *HEAD)
    rungs = json.loads(done.stdout)["rungs"]
    assert "tp 16 exceeds the 8 GPUs" in rungs[0]["why_none"]
    assert (rungs[0]["strategies"], rungs[0]["next"]) == ([], None)
    assert rungs[1]["strategies"]
    text = invoke("plan", *arguments, "--gbs-max", "2", *HEAD).stdout
    assert "tp 16 exceeds the 8 GPUs" in text


def test_an_option_that_is_repeated_is_searched_over() -> None:
    found = planned("--gbs", "8", "--top", "1000", "--zero", "0", "--zero", "1")["rungs"][0]
    stages = {one["techniques"]["zero_stage"] for one in found["strategies"]}
    assert stages == {0, 1}


def test_a_plan_from_a_table_says_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(
        "layers,hidden,heads,ffn,seq,dp,tp,pp,mbs,gbs,gpu_type,gpus_per_node,iteration_s\n"
        "24,2048,16,8192,1024,4,1,1,4,64,A100-80GB,2,0.001\n",
        encoding="utf-8",
    )
    preset = ("--preset", f"table:{path}", "--gbs", "64", "--top", "1000")
    found = {one["strategy"]: one for one in planned(*preset)["rungs"][0]["strategies"]}
    measured = found.pop("dp4-tp1-pp1-mbs4-gbs64")
    assert (measured["origin"], measured["iteration_s"]) == ("measured", 0.001)
    assert {one["origin"] for one in found.values()} == {"scaled model"}
    assert "(T: measured)" in invoke(*BASE, *preset).stdout


def test_a_model_from_hugging_face_at_its_own_length(tmp_path: Path) -> None:
    path = str(write(tmp_path, LLAMA))
    arguments = ("plan", "--model", path, "--cluster", CLUSTER, "--gbs", "16", "--seq", "2048")
    content = json.loads(invoke(*arguments, "--json", *HEAD).stdout)
    assert (content["model"], content["seq_length"]) == ("some-model", 2048)


def test_a_longer_sequence_takes_longer() -> None:
    short, long = (planned("--gbs", "8", "--seq", seq, *HEAD) for seq in ("512", "2048"))
    times = [c["rungs"][0]["strategies"][0]["iteration_s"] for c in (short, long)]
    assert times[1] > 2 * times[0]


# --- emit and figure ----------------------------------------------------------------------------


def test_emit_prints_the_winner_and_nothing_else_to_stdout() -> None:
    winner = Strategy.parse(planned("--gbs", "64", *HEAD)["rungs"][0]["strategies"][0]["strategy"])
    content = json.loads(invoke(*BASE, "--gbs", "64", *HEAD, "--emit", "deepspeed").stdout)
    assert content["train_micro_batch_size_per_gpu"] == winner.mbs
    done = invoke(*BASE, "--gbs", "64", *HEAD, "--emit", "torchtitan")
    assert tomllib.loads(done.stdout)["parallelism"]["tensor_parallel_degree"] == winner.tp
    assert f"# {winner}" in done.stderr
    flags = invoke(*BASE, "--gbs", "64", *HEAD, "--emit", "megatron").stdout
    assert f"--micro-batch-size {winner.mbs} " in flags


def test_emit_takes_the_fastest_that_the_trainer_can_run(tmp_path: Path) -> None:
    """A slow network makes a pipeline the fastest, which DeepSpeed lacks beside ZeRO-2."""
    slow = {"bandwidth_gb_s": 1, "efficiency": 0.5, "latency_us": 20}
    path = facts(ClusterSpec, CLUSTER, tmp_path, inter_node=slow)
    asked = ("plan", "--model", MODEL, "--cluster", path, "--gbs", "64", "--zero", "2")
    content = json.loads(invoke(*asked, "--json", "--top", "1000").stdout)
    found = content["rungs"][0]["strategies"]
    assert found[0]["pp"] > 1
    flat = next(one for one in found if one["pp"] == 1)
    done = invoke(*asked, "--top", "1", "--emit", "deepspeed")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["train_micro_batch_size_per_gpu"] == flat["mbs"]
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith(f"# not the fastest, {found[0]['strategy']} zero2: zero_stage 2: Deep")
    assert second == f"# {flat['strategy']} zero2"


def test_emit_refuses_where_the_trainer_can_run_nothing(tmp_path: Path) -> None:
    model = facts(ModelSpec, MODEL, tmp_path, num_heads=1, num_kv_heads=1)
    asked = ("plan", "--model", model, "--cluster", CLUSTER, "--gbs", "1", "--zero", "2")
    failed = invoke(*asked, "--emit", "deepspeed")
    assert failed.exit_code == 2
    assert "allows at most stage 1, and no other strategy can run" in failed.stderr


def test_the_figure_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    done = invoke(*BASE, "--gbs", "64", *HEAD, "--figure", str(tmp_path / "parts.png"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "parts.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "parts.pdf").read_bytes().startswith(b"%PDF")


def test_bars_of_the_figure_end_at_the_iteration_time() -> None:
    from cona.analysis.figure_breakdown import draw
    from cona.cost.ranking import Ranked

    one = Ranked(
        strategy=Strategy(dp=1, tp=1, pp=1, mbs=1, gbs=8),
        iteration_s=6.0,
        parts_s={"compute": 3.0, "bubble": 1.0, "head": 2.0},
        memory_bytes=None,
    )
    axes = draw([one], "title").axes[0]
    assert sorted(bar.get_width() for bar in axes.patches) == [1.0, 2.0, 3.0]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == 6.0
    assert [text.get_text() for text in axes.texts] == [" 1.33 samples/s"]


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "gpt3-1.3"], "did you mean 'gpt3-1.3b'?"),
        (["--cluster", "a100x4-2nodes"], "did you mean 'a100x4-2node'?"),
        (["--preset", "calculo"], "did you mean 'calculon'?"),
        (["--emit", "megatorn"], "--emit 'megatorn': did you mean 'megatron'?"),
        (["--zero", "4"], "zero_stage 4: must be 0, 1, 2 or 3"),
        (["--recompute", "some"], "recompute 'some': valid: none, selective, full"),
        (["--virtual-stages", "0"], "virtual_stages = 0: must be between 1 and 131072"),
        (["--context-parallel", "3"], "3 does not divide the 4 GPUs; nearest: 2"),
        (["--context-parallel", "1", "--context-parallel", "8"], "the 4 GPUs; nearest: 4"),
        (["--figure", "x.gif"], "the suffix must be one of .png, .pdf"),
        (["--figure", "no/folder/x.png"], "there is no folder 'no/folder'"),
        (["--model", "none/config.json"], "No such file"),
    ],
)
def test_bad_options_are_one_sentence_with_status_2(arguments: list[str], sentence: str) -> None:
    failed = invoke(*BASE, "--gbs", "8", *arguments)
    assert failed.exit_code == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("Error: ")
    assert sentence in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_calculon_refuses_techniques_that_it_would_not_price() -> None:
    failed = invoke(*BASE, "--gbs", "8", "--preset", "calculon", "--recompute", "selective")
    assert failed.exit_code == 2
    assert "leave the techniques out" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ladder", "--top", "10"], "--top has no effect with --ladder"),
        (["--gbs", "8", "--gbs-max", "256"], "--gbs-max is the last batch of --ladder"),
        (["--gbs", "8", "--json", "--emit", "megatron"], "--json and --emit both print"),
    ],
)
def test_options_without_effect_are_refused(arguments: list[str], sentence: str) -> None:
    failed = invoke(*BASE, *arguments)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert f"Error: {sentence}" in failed.stderr


def test_a_batch_size_is_needed_and_a_ladder_doubles() -> None:
    assert "--gbs is missing" in invoke(*BASE).stderr
    assert "--ladder" in invoke(*BASE, "--ladder", "--gbs-max", "48").stderr
    assert invoke(*BASE, "--gbs", "0").exit_code == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpu_memory_gb": None}, "key 'gpu_memory_gb' is missing"),
        ({"num_nodes": -2}, "num_nodes = -2"),
        ({"gpus_per_node": 0}, "gpus_per_node = 0"),
        ({"gpu_memory_gb": -80}, "gpu_memory_gb = -80"),
        ({"bandwidth": 3}, "unknown key 'bandwidth'"),
        ({"gpu": "a100-81g"}, "GPU 'a100-81g': did you mean 'a100-80g'?"),
        ({"gpu": "NVIDIA H100"}, "GPU 'NVIDIA H100': did you mean 'h100-80g'?"),
        ({"gpu": "H300"}, "unknown GPU 'H300': valid: a100-80g, a100-40g, h100-80g"),
        ({"intra_node": {"efficiency": 0.5, "latency_us": 1}}, "'intra_node.bandwidth_gb_s'"),
    ],
)
def test_a_bad_cluster_file_is_refused(tmp_path: Path, changes: dict, sentence: str) -> None:
    path = facts(ClusterSpec, CLUSTER, tmp_path, **changes)
    failed = invoke("plan", "--model", MODEL, "--cluster", path, "--gbs", "8")
    assert failed.exit_code == 2
    assert sentence in failed.stderr
    assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("preset", ["calculon", "improved"])
@pytest.mark.parametrize("spelling", ["A100_80GB", "a100 80g", "A100-80GB"])
def test_a_gpu_may_be_spelled_in_other_ways(tmp_path: Path, spelling: str, preset: str) -> None:
    path = facts(ClusterSpec, CLUSTER, tmp_path, gpu=spelling)
    asked = ("plan", "--model", MODEL, "--cluster", path, "--gbs", "8", "--preset", preset)
    found = json.loads(invoke(*asked, "--json").stdout)
    assert found["rungs"] == planned("--gbs", "8", "--preset", preset)["rungs"]


def test_a_model_whose_heads_do_not_divide_is_refused(tmp_path: Path) -> None:
    path = facts(ModelSpec, MODEL, tmp_path, num_heads=15, num_kv_heads=15)
    failed = invoke("plan", "--model", path, "--cluster", CLUSTER, "--gbs", "8")
    assert failed.exit_code == 2
    assert "hidden_size 2048 is not divisible by num_heads 15" in failed.stderr


def test_a_model_that_does_not_fit_says_what_would_help(tmp_path: Path) -> None:
    path = facts(ClusterSpec, CLUSTER, tmp_path, gpu_memory_gb=1)
    failed = invoke("plan", "--model", MODEL, "--cluster", path, "--gbs", "8", *HEAD)
    assert failed.exit_code == 2
    assert "GB of memory" in failed.stderr
    assert "so do ZeRO, recomputation and more GPUs" in failed.stderr


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    text = table(("name", "s"), [("a", "1.25"), ("long one", "10")])
    assert text.splitlines() == ["name         s", "a         1.25", "long one    10"]


# --- start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--gbs", "64"], ["--ladder"]], ids=" ".join)
def test_plan_imports_nothing_slow(arguments: list[str]) -> None:
    """So that it answers at once: `benchmarks/cost_speed.py` measures it."""
    code = (
        "import sys; from cona.cli import main\n"
        f"try: main({[*BASE, *arguments]!r})\n"
        "except SystemExit as end: status = end.code\n"
        f"found = [name for name in {SLOW_TO_IMPORT!r} + ('scipy',) if name in sys.modules]\n"
        "sys.exit(status or ' '.join(found) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
