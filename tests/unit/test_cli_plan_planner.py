"""`cona plan --planner`: the report, a planner on a profile, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from profile_cases import SIZES, lines, write_profile

from cona import cli
from cona.cli.planner_text import short
from cona.cli.terminal import table
from cona.planners import Plan, StagePlan
from cona.planners.report import planner_names

BASE = ("--model", "llama-3.2-1b", "--cluster", "a100x4-2node")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ("plan", *arguments))


def planned(*arguments: str) -> dict:
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_all_planners_are_reported() -> None:
    content = planned("--planner", "all", *BASE, "--gbs", "64")
    rows = {row["planner"]: row for row in content["planners"]}
    assert list(rows) == planner_names()
    assert (content["reference"], content["costs"], content["num_gpus"]) == ("improved",) * 2 + (4,)
    best = rows["fixed-best"]
    assert best["truth"]["over_best"] == pytest.approx(0)
    assert best["truth"]["iteration_s"] == best["plan"]["believed_s"]
    for row in rows.values():
        assert row["search_s"] < 30
        assert row["num_evaluated"] >= 1
        assert row["plan"]["stages"][0]["first_layer"] == 0


def test_the_text_shows_unequal_stages_as_they_are() -> None:
    done = invoke("--planner", "amp", *BASE, "--gbs", "64")
    row = planned("--planner", "amp", *BASE, "--gbs", "64")["planners"][0]
    assert done.exit_code == 0
    assert "modelled by improved" in done.stdout
    assert row["plan"]["text"] in done.stdout
    assert "+" in row["plan"]["text"]
    assert "amp at gbs 64: judged with equal stages" in done.stdout


def plan_of(*stages: tuple[int, int, int], mixed: str | None = None) -> Plan:
    """Return a plan of stages (layers, dp, tp)."""
    found = tuple(
        StagePlan(first_layer=0, num_layers=layers, dp=dp, tp=tp, mixed=mixed)
        for layers, dp, tp in stages
    )
    return Plan(stages=found, mbs=1, gbs=64, believed_s=1.0)


def test_a_plan_of_many_stages_is_short() -> None:
    assert short(plan_of((2, 1, 1), (2, 1, 1))) == "dp1-tp1-pp2-mbs1-gbs64"
    uneven = plan_of((0, 1, 1), *[(1, 1, 1)] * 9, (7, 1, 1))
    assert short(uneven) == "dp1-tp1-pp11-mbs1-gbs64 (0+9x1+7 layers)"
    assert short(plan_of((5, 1, 1), (5, 1, 1), (6, 1, 1))).endswith("(5+5+6 layers)")
    unlike = plan_of((7, 4, 2), *[(3, 2, 2)] * 4, (3, 2, 4))
    assert short(unlike) == "[7L:dp4-tp2, 4x3L:dp2-tp2, 3L:dp2-tp4]-mbs1-gbs64"
    mixed = plan_of((16, 4, 1), mixed="2 layers dp2-tp2, 14 layers dp4-tp1")
    assert short(mixed) == "[16L:mixed]-mbs1-gbs64"


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_plan_is_not_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stages = [(3 + i % 2, 4, 2 + 2 * (i % 2)) for i in range(12)]
    drawn = table(("planner", "plan", "s"), [("megatron-rules", short(plan_of(*stages)), "0.25")])
    assert max(map(len, drawn.splitlines())) <= width
    assert sum(part.startswith(("3L", "4L", "[3L")) for part in drawn.split()) == 12


def test_a_ladder_is_swept() -> None:
    rows = planned("--planner", "calculon", *BASE, "--ladder", "--gbs-max", "32")["planners"]
    assert [row["gbs"] for row in rows] == [8, 16, 32]


def test_every_plan_with_its_cost() -> None:
    row = planned("--planner", "amp", *BASE, "--gbs", "8", "--all-plans")["planners"][0]
    assert len(row["evaluated"]) == row["num_evaluated"]
    assert row["plan"]["believed_s"] == min(plan["believed_s"] for plan in row["evaluated"])
    text = invoke("--planner", "amp", *BASE, "--gbs", "8", "--all-plans").stdout
    assert all(plan["text"] in text for plan in row["evaluated"])
    assert "evaluated" not in planned("--planner", "amp", *BASE, "--gbs", "8")["planners"][0]


def test_a_planner_on_a_profile(tmp_path: Path) -> None:
    folder = str(write_profile(tmp_path))
    content = planned("--planner", "metis", "--profile", folder, "--gpus", "2", "--gbs", "4")
    row = content["planners"][0]
    # See test_metis: the whole on tp 2, m = 4; 4*69 ms, fb_sync 4*1, optimizer 12, generator 2.
    assert row["plan"]["text"] == "dp1-tp2-pp1-mbs1-gbs4"
    assert row["plan"]["believed_s"] == pytest.approx(0.276 + 0.004 + 0.012 + 0.002)
    assert (row["truth"], content["reference"]) == (None, None)


def test_what_a_plan_notes_is_shown_without_a_reference_too(tmp_path: Path) -> None:
    folder = str(write_profile(tmp_path, forward_backward_ms=1.0))
    done = invoke("--planner", "metis", "--profile", folder, "--gpus", "2", "--gbs", "4")
    assert "metis at gbs 4: forward_backward_ms is less than the sum" in done.stdout


def test_all_planners_on_a_profile_say_who_needs_more(tmp_path: Path) -> None:
    folder = str(write_profile(tmp_path))
    content = planned("--planner", "all", "--profile", folder, "--gpus", "2", "--gbs", "4")
    rows = {row["planner"]: row for row in content["planners"]}
    assert "leave --profile out" in rows["calculon"]["why_none"]
    assert rows["calculon"]["plan"] is None
    assert rows["metis"]["why_none"] is None


def test_a_profile_without_the_needed_size(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, lines([size for size in SIZES if size != (1, 1)]))
    done = invoke("--planner", "metis", "--profile", str(folder), "--gpus", "2", "--gbs", "4")
    assert done.exit_code == 2
    assert "tp 1, mbs 1 was not measured" in done.stderr


def test_nothing_feasible_says_what_was_closest(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, gpu_memory_gb=0.01)
    arguments = ("--profile", str(folder), "--gpus", "4", "--gbs", "4")
    done = invoke("--planner", "megatron-rules", *arguments)
    assert done.exit_code == 2
    assert "nothing feasible at gbs 4 on 4 GPUs: closest was dp1-tp2-pp2-mbs1-gbs4" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--planner", "meti", *BASE, "--gbs", "8"), "did you mean 'metis'"),
        (("--planner", "amp-mem=on", *BASE, "--gbs", "8"), "unknown parameter 'mem=on'"),
        (("--planner", "amp", *BASE), "--gbs is missing"),
        (("--planner", "amp", "--model", "gpt3-1.3b", "--gbs", "8"), "Missing option '--cluster'"),
        (("--planner", "amp", *BASE, "--gbs", "8", "--top", "3"), "--top has no effect"),
        (("--planner", "amp", *BASE, "--gbs", "8", "--emit", "megatron"), "--emit has no effect"),
        (("--planner", "amp", *BASE, "--gbs", "8", "--gpus", "8"), "--gpus is for --profile"),
        (("--planner", "amp", *BASE, "--gbs", "8", "--zero", "0", "--zero", "1"), "give each once"),
        (("--planner", "amp", *BASE, "--gbs", "8", "--virtual-stages", "2"), "know neither"),
        (("--planner", "amp", "--profile", "no", "--gbs", "8"), "--gpus is missing"),
        (("--planner", "amp", "--profile", "no", "--gpus", "8", "--gbs", "8"), "no such folder"),
        (("--planner", "amp", "--profile", "no", *BASE), "--model has no effect with --profile"),
        (("--profile", "no", "--gbs", "8"), "--profile is for planners: add --planner"),
        ((*BASE, "--gbs", "8", "--all-plans"), "--all-plans is for planners"),
    ],
)
def test_refusals(arguments: tuple[str, ...], sentence: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
