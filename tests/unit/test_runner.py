"""The loop: budgets, evaluation grid, clocks, resume, and what ends up in the files.

Training is done by a toy engine (unigram logits), so that these tests take milliseconds; the same
properties are shown with megatron in tests/unit/engine and tests/workflow.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from problems import tiny_tier
from toy_engine import ToyEngine

from baselines.fixed_best import FixedBest
from cona.errors import ConfigError, PolicyError, RunError
from cona.lock import Lock
from cona.policy import Decision, Observation
from cona.runlog import read_json, read_records
from cona.runner import ROUNDING, Interrupted, RunRequest, run
from cona.search import best
from cona.setup import Setup
from cona.specs import ClockSpec
from cona.strategy import Strategy

Make = Callable[..., RunRequest]


@pytest.fixture
def make(toy_runs: Path, small_corpus: str) -> Make:
    """Return a function that requests a run of the tiny model under the toy engine."""

    def request(policy: str = "cona", results: str = "results", **tier: Any) -> RunRequest:
        settings = {
            "cluster": "tiny-cluster",
            "data": {"corpus": small_corpus},
            "budget": {"iterations": 60},
            **tier,
        }
        return RunRequest(
            tier=tiny_tier(**settings),
            model="tiny",
            policy=policy,
            seed=0,
            results=toy_runs.with_name(results),
        )

    return request


def lines(result: Path, kind: str) -> list[dict[str, Any]]:
    return [r for r in read_records(result.with_name("metrics.jsonl")) if r["kind"] == kind]


def test_budget_grid_and_totals(make: Make) -> None:
    path = run(make("fixed-best-gbs8"))
    result, steps, evals = read_json(path), lines(path, "step"), lines(path, "eval")
    # 60 iterations of the best strategy at gbs_min, which this policy is: the budget fits exactly,
    # although a sum of 60 T rounds otherwise than 60 * T.
    assert result["status"] == "finished"
    assert result["iterations"] == len(steps) == 60
    assert result["samples"] == 480
    assert result["train_s"] == pytest.approx(result["time_budget_s"])
    assert [e["samples"] for e in evals] == list(range(0, 481, 32))
    assert [s["iteration"] for s in steps] == list(range(1, 61))
    assert evals[0]["train_s"] == 0.0
    assert evals[0]["ppl"] == pytest.approx(512)
    assert result["ppl"] == evals[-1]["ppl"] < 200
    assert result["num_switches"] == 0


@pytest.mark.parametrize("iterations", [7, 49, 299, 500])
def test_no_iteration_is_lost_to_rounding(make: Make, iterations: int) -> None:
    path = run(make("fixed-best-gbs8", budget={"iterations": iterations}))
    assert read_json(path)["iterations"] == iterations


def test_larger_batches_get_the_same_seconds(make: Make) -> None:
    results = [read_json(run(make(f"fixed-best-gbs{g}"))) for g in (8, 16, 32)]
    assert len({r["time_budget_s"] for r in results}) == 1
    for result in results:
        step = lines(make(result["policy"]).folder / "result.json", "step")[-1]
        assert result["train_s"] <= result["time_budget_s"] * (1 + ROUNDING)
        assert result["train_s"] + step["iteration_s"] > result["time_budget_s"]


def test_the_clock_adds_up_with_switches(make: Make) -> None:
    path = run(
        make("rampup-ramp0.2", clock=ClockSpec(switch_cost="restart"), budget={"iterations": 800})
    )
    result, steps, switches = read_json(path), lines(path, "step"), lines(path, "switch")
    assert [s["to"].rsplit("gbs")[1] for s in switches] == ["16", "24", "32"]
    assert len(result["stages"]) == 4
    compute = sum(s["iteration_s"] for s in steps)
    paid = {p: sum(s["cost_s"][p] for s in switches) for p in ("live", "restart", "zero")}
    assert result["compute_s"] == pytest.approx(compute)
    assert result["switch_s"] == pytest.approx(paid)
    assert result["train_s"] == pytest.approx(compute + paid["live"])
    for switch in switches:
        same = Strategy.parse(switch["from"]).layout == Strategy.parse(switch["to"]).layout
        assert (switch["cost_s"]["restart"] == 0.0) == same
        assert switch["cost_s"]["zero"] == 0.0


def test_grid_crossed_by_odd_batches(make: Make) -> None:
    path = run(make("rampup-ramp0.2"))
    evals = lines(path, "eval")
    # At the first iteration with consumed samples >= each grid point, once, and at the end.
    steps = [0, *(s["samples"] for s in lines(path, "step"))]
    expected = sorted(
        {next(s for s in steps if s >= g) for g in range(0, steps[-1] + 1, 32)} | {steps[-1]}
    )
    assert [e["samples"] for e in evals] == expected


def test_every_policy_runs_and_logs_reasons(make: Make) -> None:
    for policy in ("cona", "cona-paper", "greedy-oracle", "rampup"):
        path = run(make(policy, budget={"iterations": 200}))
        assert read_json(path)["policy"] == policy
        for decision in lines(path, "decision"):
            assert decision["reason"]
            assert decision["action"] in ("stay", "switch")
    chosen = lines(path.parents[2] / "cona/seed0/result.json", "decision")
    assert {"gns", "gns_low", "gns_high", "t_cur_s", "t_next_s", "r", "net_s", "cost_s"} <= set(
        chosen[-1]["details"]
    )


def test_the_oracle_is_no_worse_than_the_worst_fixed_batch(make: Make) -> None:
    oracle = read_json(run(make("greedy-oracle")))
    fixed = [read_json(run(make(f"fixed-best-gbs{g}")))["ppl"] for g in (8, 16, 32)]
    assert oracle["ppl"] <= max(fixed)


def test_a_finished_run_is_not_touched(make: Make) -> None:
    path = run(make())
    files = [p for p in path.parent.iterdir() if not p.name.startswith(".lock.")]
    before = {p: p.stat().st_mtime_ns for p in files}
    assert run(make()) == path
    assert {p: p.stat().st_mtime_ns for p in files} == before


def test_layouts_share_one_trajectory(make: Make) -> None:
    first = read_json(run(make("fixed-best-gbs16")))
    built = ToyEngine.num_built
    retimed = read_json(run(make("fixed-best-gbs16", clock={"time_source": "calculon"})))
    assert retimed["trajectories"] == first["trajectories"]
    assert ToyEngine.num_built == built or retimed["iterations"] > first["iterations"]
    assert retimed["clock"]["time_source"] == "calculon"


def test_another_configuration_sets_the_old_run_aside(make: Make) -> None:
    path = run(make())
    old = path.read_text()
    again = run(make(budget={"iterations": 30}))
    assert again == path
    assert read_json(path)["time_budget_s"] == pytest.approx(json.loads(old)["time_budget_s"] / 2)
    kept = list((path.parent / "superseded").glob("*/result.json"))
    assert [p.read_text() for p in kept] == [old]


def test_a_switch_that_leaves_no_time_ends_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
    request = make("fixed-best-gbs8", clock=ClockSpec(switch_cost="restart"))

    def decide(self: FixedBest, seen: Observation) -> Decision:
        wanted = elsewhere if seen.iteration == 10 else None
        return Decision(strategy=wanted, reason="test", quiet=wanted is None)

    monkeypatch.setattr(FixedBest, "decide", decide)
    path = run(request)
    result = read_json(path)
    # A restart of 38 s does not fit into the few milliseconds of this budget.
    assert result["iterations"] == 10
    assert result["train_s"] == pytest.approx(result["time_budget_s"] / 6)
    assert lines(path, "decision")[-1]["action"] == "switch"
    assert result["num_switches"] == len(lines(path, "switch")) == 0


def test_evaluations_cost_wall_time_only(make: Make) -> None:
    path = run(make("fixed-best-gbs8"))
    result, evals = read_json(path), lines(path, "eval")
    iteration_s = lines(path, "step")[0]["iteration_s"]
    # Four sequences at gbs 8 are half an iteration, and its forward pass a quarter of that.
    assert result["wall_s"] == pytest.approx(result["train_s"] + len(evals) * iteration_s / 8)


def test_fixed_best_and_the_oracle_plan_with_the_reference_clock(make: Make) -> None:
    for policy in ("fixed-best-gbs8", "fixed-best-gbs16", "greedy-oracle"):
        request = make(policy, belief="calculon", clock={"time_source": "calculon+head"})
        for stage in read_json(run(request))["stages"]:
            setup, gbs = Setup(request), Strategy.parse(stage["strategy"]).gbs
            wanted, _ = best(setup.space.at(gbs), setup.time_source)
            assert stage["strategy"] == str(wanted)


@pytest.mark.parametrize("lost", [["run.json"], ["run.json", "result.json"], []])
def test_files_of_an_unknown_configuration_are_set_aside(make: Make, lost: list[str]) -> None:
    path = run(make())
    old = path.with_name("metrics.jsonl").read_bytes()
    for name in lost:
        path.with_name(name).unlink()
    if not lost:
        path.with_name("run.json").write_text("[]")
        path.unlink()
    other = {"base_gbs": 16, "decay_samples": 1000}
    run(make(learning_rate=other))
    kept = list((path.parent / "superseded").glob("*/metrics.jsonl"))
    assert [p.read_bytes() for p in kept] == [old]
    assert run(make(learning_rate=other)) == path


def test_a_result_of_another_schema_is_written_again(make: Make) -> None:
    path = run(make())
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"schema": 1,', b'"schema": 0,'))
    assert path.read_bytes() != before
    assert run(make()).read_bytes() == before


def test_a_flipped_digit_in_a_result_is_seen_said_and_mended(make: Make) -> None:
    said: list[str] = []
    path = run(make(), say=said.append)
    before = path.read_bytes()
    assert run(make(), say=said.append).read_bytes() == before
    assert not said
    path.write_bytes(before.replace(b'"seed": 0', b'"seed": 8'))
    assert run(make(), say=said.append).read_bytes() == before
    assert said == ["result.json is damaged: it does not match its checksum; the run is repeated"]


def test_two_superseded_runs_of_one_configuration_are_both_kept(make: Make) -> None:
    for iterations in (60, 30, 60, 30):
        path = run(make(budget={"iterations": iterations}))
    assert len(list((path.parent / "superseded").glob("*/result.json"))) == 3


@pytest.mark.parametrize("policy", ["cona", "greedy-oracle", "rampup"])
@pytest.mark.parametrize("after", [1, 23, 47])
def test_stopping_anywhere_and_continuing_gives_the_same_bytes(
    make: Make, policy: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(make(policy, results="whole")).with_name("metrics.jsonl").read_bytes()
    original = ToyEngine.train_step
    count = 0

    def stop_after(self: ToyEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ToyEngine, "train_step", stop_after)
    with pytest.raises(Interrupted) as stopped:
        run(make(policy, results="parts"))
    assert stopped.value.signal_number == signal.SIGTERM
    path = run(make(policy, results="parts"))
    assert path.with_name("metrics.jsonl").read_bytes() == whole
    events = [r["event"] for r in read_records(path.with_name("events.jsonl"))]
    assert events == ["started", "ended early", "resumed", "finished"]


def test_a_diverged_run_is_labelled(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ToyEngine.train_step

    def explode(self: ToyEngine, *args: Any, **kwargs: Any) -> Any:
        if self.num_steps == 20:
            self.logits[:] = float("nan")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ToyEngine, "train_step", explode)
    path = run(make("fixed-best-gbs8"))
    result = read_json(path)
    assert result["status"] == "diverged"
    assert result["iterations"] == 24  # at 192 samples it is evaluated, before the patience ends
    assert result["ppl"] is None
    assert lines(path, "step")[-1]["loss"] is None
    assert b"NaN" not in path.with_name("metrics.jsonl").read_bytes()


def test_two_processes_do_not_share_a_run_directory(make: Make) -> None:
    request = make()
    request.folder.mkdir(parents=True)
    with Lock(request.folder), pytest.raises(RunError, match="another process works on this"):
        run(request)
    assert run(request).exists()


def test_bad_requests(make: Make) -> None:
    with pytest.raises(ConfigError, match="seed -1: must be between 0"):
        run(replace(make(), seed=-1))
    with pytest.raises(ConfigError, match="unknown policy 'konaa'"):
        run(make("konaa"))
    with pytest.raises(RunError, match="one iteration of .* more than the whole budget"):
        run(make("fixed-best-gbs32", budget={"iterations": 1}))


def test_a_policy_that_returns_no_decision(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedBest, "decide", lambda self, observation: None)
    with pytest.raises(RunError, match=r"decide\(\) at sample 8 returned None; it must return"):
        run(make("fixed-best-gbs8"))


def test_a_policy_that_fails_is_named_and_its_traceback_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedBest, "decide", lambda self, observation: {}["gone"])
    request = make("fixed-best-gbs8")
    with pytest.raises(PolicyError, match=r"decide\(\) at sample 8 failed: KeyError: 'gone'; its"):
        run(request)
    (event,) = events(request.folder / "result.json", "ended early")
    assert "Traceback" in event["traceback"] and "test_runner.py" in event["traceback"]


# --- searches and tables --------------------------------------------------------------------------


def events(result: Path, what: str) -> list[dict[str, Any]]:
    return [e for e in read_records(result.with_name("events.jsonl")) if e["event"] == what]


def test_search_time_is_a_bucket_outside_the_clock(make: Make) -> None:
    exact, bayesian = run(make("cona-paper")), run(make("cona-paper-search=bo"))
    (event,) = events(bayesian, "finished")
    assert event["search_s"] > 0
    assert "search_s" not in events(run(make("fixed-best-gbs8")), "finished")[0]
    result = read_json(bayesian)
    assert result["train_s"] == result["compute_s"] + result["switch_s"]["live"]
    assert read_json(exact)["time_budget_s"] == result["time_budget_s"]
    assert "search_s" not in result


def test_a_bayesian_run_is_repeatable_byte_for_byte(make: Make) -> None:
    first = run(make("cona-paper-search=bo"))
    again = run(make("cona-paper-search=bo", results="again"))
    assert first.with_name("metrics.jsonl").read_bytes() == (
        again.with_name("metrics.jsonl").read_bytes()
    )


def table_clock(tmp_path: Path, seconds: float) -> ClockSpec:
    """A clock whose table has dp4 at gbs 8: fast at mbs 1, very slow at mbs 2."""
    path = tmp_path / "measured.csv"
    path.write_text(
        "gpus,gbs,mbs,hidden,heads,ffn,layers,seq,tp,dp,pp,gpus_per_node,iteration_ms\n"
        f"4,8,1,16,4,32,4,16,1,4,1,2,{seconds * 1e3}\n"
        "4,8,2,16,4,32,4,16,1,4,1,2,1e9\n"
    )
    return ClockSpec(time_source=f"table:{path}")


def test_the_result_says_which_times_were_measured(make: Make, tmp_path: Path) -> None:
    clock = table_clock(tmp_path, 0.01)
    plain = {"clock": clock, "belief": clock.time_source, "techniques": {}}  # as the rows are
    result = read_json(run(make("fixed-best-gbs8", **plain)))
    assert result["clock"]["time_source"] == clock.time_source
    (stage,) = result["stages"]
    assert stage["strategy"] == "dp4-tp1-pp1-mbs1-gbs8"
    assert stage["time_origin"] == "measured"
    assert result["train_s"] == pytest.approx(0.6)
    longer = {"iterations": 2000}
    other = read_json(run(make("fixed-best-gbs16", clock=clock, budget=longer)))
    assert other["stages"][0]["time_origin"] == "scaled model"
    assert read_json(run(make("fixed-best-gbs8")))["stages"][0]["time_origin"] == "model"


def test_another_table_under_the_same_name_is_another_run(make: Make, tmp_path: Path) -> None:
    clock = table_clock(tmp_path, 0.01)
    first = read_json(run(make("fixed-best-gbs8", clock=clock)))
    table_clock(tmp_path, 0.02)
    second = read_json(run(make("fixed-best-gbs8", clock=clock)))
    assert first["run_key"] != second["run_key"]
