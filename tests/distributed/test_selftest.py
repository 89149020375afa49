"""`cona selftest` passes what is right, fails what is wrong, and says which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cona import cli, selftest

LAYOUTS = ["dp2-tp1-pp1", "dp1-tp1-pp2", "dp1-tp2-pp1"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["selftest", *arguments])


def report_of(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


def by_layouts(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cases by their layout, 'live' for the one that goes through all."""
    return {
        case["layouts"][0] if len(case["layouts"]) == 1 else "live": case
        for case in report["cases"]
    }


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Test an engine of broken_engines.py; what its ranks print stays below tmp_path."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def choose(name: str) -> None:
        monkeypatch.setattr(selftest, "ENGINE", f"broken_engines:{name}")

    return choose


def test_two_ranks_pass_and_the_differences_are_small_but_not_absent():
    result = invoke("--nproc", "2", "--family", "llama", "--json")
    assert result.exit_code == 0, result.output
    report = report_of(result)
    assert report["passed"]
    cases = by_layouts(report)
    assert list(cases) == [*LAYOUTS, "live"]
    assert all(case["passed"] and case["family"] == "llama" for case in cases.values())
    assert set(cases["live"]["layouts"]) == set(LAYOUTS)
    assert set(cases["live"]["differences"]) == {"loss"}
    split = cases["dp1-tp2-pp1"]["differences"]
    assert 0 < split["loss"] < report["tolerances"]["fp32"]["loss"] == 1e-5
    assert 0 < split["tr_sigma"] < report["tolerances"]["fp32"]["tr_sigma"] == 1e-4


def test_one_rank_is_the_parallel_engine_without_a_partner():
    result = invoke("--nproc", "1", "--family", "gpt", "--precision", "bf16")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("gpt")]
    assert [(line[1], line[2], line[-1]) for line in lines] == [
        ("fp32", "dp1-tp1-pp1", "pass"),
        ("bf16", "dp1-tp1-pp1", "pass"),
    ]
    assert "2 of 2 passed; fp32 within loss 1e-05" in result.stdout


def test_a_switch_that_loses_moments_fails(broken, tmp_path):
    broken("ForgetsMoments")
    result = invoke("--nproc", "2", "--family", "gpt", "--json")
    assert result.exit_code == 1
    report = report_of(result)
    assert not report["passed"]
    assert {name: case["passed"] for name, case in by_layouts(report).items()} == {
        **dict.fromkeys(LAYOUTS, True),
        "live": False,
    }
    (logs,) = tmp_path.glob("cona-selftest-*")
    assert f"what the ranks printed is in {logs}" in result.stderr


def test_a_norm_that_counts_replicas_twice_fails_where_there_are_replicas(broken):
    broken("CountsReplicasTwice")
    result = invoke("--nproc", "2", "--family", "gpt")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.startswith("gpt")]
    assert [line.split()[-1] for line in lines] == ["FAIL", "pass", "pass", "pass"]
    assert "4.1e-01" in lines[0]  # sqrt 2 - 1


def test_a_rank_that_fails_is_named_and_stops_the_launch(broken, tmp_path):
    broken("BreaksOnPipelines")
    result = invoke("--nproc", "2", "--family", "gpt", "--json")
    assert result.exit_code == 1
    cases = by_layouts(report_of(result))
    assert cases["dp2-tp1-pp1"]["passed"]
    assert cases["dp1-tp1-pp2"]["note"] == "rank 1: RuntimeError: no second stage here"
    for name in ("dp1-tp2-pp1", "live"):
        assert cases[name]["note"] == "did not run: the case before it failed to end"
        assert not cases[name]["passed"]
    assert "Traceback" not in result.output
    (log,) = tmp_path.glob("cona-selftest-*/gpt-2-rank1.log")
    assert "Traceback" in log.read_text()


def test_a_rank_that_is_killed_ends_the_launch(broken):
    broken("Dies")
    result = invoke("--nproc", "2", "--family", "gpt", "--json")
    assert result.exit_code == 1
    first, *others = report_of(result)["cases"]
    assert first["note"] == "rank 1 died"
    assert {case["note"] for case in others} == {"did not run: the case before it failed to end"}


def test_losses_that_are_not_numbers_fail(broken):
    broken("Diverges")
    result = invoke("--nproc", "1", "--family", "gpt", "--json")
    assert result.exit_code == 1
    (case,) = report_of(result)["cases"]
    assert case["note"] == "no finite gradient in iteration 0, 1, 2, 3, 4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "0"], "nproc 0: must be at least 1"),
        (["--family", "gtp"], "'gtp' is not one of 'gpt', 'llama', 'bert'"),
        (["--precision", "fp8"], "'fp8' is not one of 'fp32', 'bf16', 'fp16'"),
    ],
)
def test_bad_options_are_one_sentence(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    result = invoke("--nproc", "4")
    assert result.exit_code == 2
    assert "this machine has 2; nearest: 2" in result.stderr


@pytest.mark.slow
def test_four_ranks_pass_for_every_family():
    result = invoke("--nproc", "4", "--json")
    assert result.exit_code == 0, result.output
    report = report_of(result)
    assert len(report["cases"]) == 3 * (3 + 1 + 6 + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_every_gpu_passes(precision):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    result = invoke("--precision", precision)
    assert result.exit_code == 0, result.output
