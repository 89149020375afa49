"""Measured runs: what the clock adds up, what the policy sees, and what a crash can cost.

One process stands for the ranks; real ones are in tests/distributed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import DP, PP, Make, lines
from problems import TABLE, TableTimes, estimate, observe, problem, tiny_model
from toy_live_engine import SWITCH_S, WARM_S, ToyLiveEngine, iteration_s

from cona.analysis.figures import write_figures
from cona.analysis.load import load_runs
from cona.analysis.tables import write_tables
from cona.clock import MeasuredClock
from cona.controller import ImprovedRule, PaperRule
from cona.engine.factory import refuse_without_gpu
from cona.errors import ConfigError
from cona.policy import Decision
from cona.runlog import read_json
from cona.runner import run
from cona.setup import Setup
from cona.specs import EngineSpec
from cona.strategy import Layout, Strategy, Techniques

# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("there_and_back")
def test_iterations_switches_and_evaluations_are_charged_what_they_took(make: Make) -> None:
    path = run(make())
    result, steps = read_json(path), lines(path, "step")
    fast, slow = iteration_s(DP.layout, 8), iteration_s(PP.layout, 8)
    expected = [fast] * 20 + [slow] * 20 + [fast] * (len(steps) - 40)
    for start in (0, 20, 40):  # the toy is slow once after a start and after a switch
        expected[start] += WARM_S
    assert [s["iteration_s"] for s in steps] == pytest.approx(expected)
    assert result["compute_s"] == pytest.approx(sum(expected))
    assert result["switch_s"] == {"measured": 2 * SWITCH_S}
    assert result["train_s"] == pytest.approx(sum(expected) + 2 * SWITCH_S)
    evals = lines(path, "eval", "measured.jsonl")
    assert result["wall_s"] - result["train_s"] == pytest.approx(sum(e["seconds"] for e in evals))
    assert result["checkpoint_s"] > 0
    assert [s["cost_s"] for s in lines(path, "switch")] == [{"measured": SWITCH_S}] * 2


@pytest.mark.usefixtures("there_and_back")
@pytest.mark.parametrize("num_warmup", [0, 1, 3])
def test_warmup_follows_the_start_and_every_switch_of_layout(make: Make, num_warmup: int) -> None:
    clock = {"kind": "measured", "warmup_iterations": num_warmup}
    steps = lines(run(make(clock=clock)), "step")
    marked = [s["iteration"] for s in steps if s["is_warmup"]]
    assert marked == [start + i for start in (1, 21, 41) for i in range(num_warmup)]


def test_a_change_of_batch_size_alone_is_no_warmup_and_costs_nothing(make: Make) -> None:
    request = make("rampup-ramp0.2", budget={"seconds": 60.0})
    path = run(request)
    assert {Strategy.parse(s["strategy"]).layout for s in lines(path, "step")} == {DP.layout}
    assert lines(path, "switch")
    assert read_json(path)["switch_s"] == {"measured": 0.0}
    assert [s["iteration"] for s in lines(path, "step") if s["is_warmup"]] == [1, 2]


def test_the_budget_is_kept_to_one_iteration(make: Make) -> None:
    result = read_json(run(make(budget={"seconds": 15.0})))
    fast = iteration_s(DP.layout, 8)
    assert result["time_budget_s"] == 15.0
    assert 15.0 - fast < result["train_s"] <= 15.0


def test_the_result_says_what_it_was_measured_on(make: Make) -> None:
    clock = read_json(run(make()))["clock"]
    assert clock == {
        "kind": "measured",
        "time_source": "measured",
        "switch_cost": "measured",
        "cluster": "tiny-cluster",
        "priced_as": "tiny",
        "hardware": {"device": "toy", "num_ranks": 4, "backend": "none"},
        "engine": {"kind": "megatron", "precision": "fp32", "switch_path": "live"},
        "unit": "seconds",
    }


def test_the_expected_iteration_is_the_median_without_warmup() -> None:
    clock = MeasuredClock({})
    assert clock.iteration_s(DP) == 0.0
    clock.add_iteration(DP, 100.0, is_warmup=True)
    assert clock.iteration_s(DP) == 0.0
    for seconds in (3.0, 1.0, 2.0):
        clock.add_iteration(DP, seconds, is_warmup=False)
    assert clock.iteration_s(DP) == 2.0
    assert clock.iteration_s(PP) == 0.0
    assert clock.train_s == 106.0


@given(st.lists(st.floats(0, 1e3), max_size=20))
def test_an_expected_switch_is_the_mean_of_those_before(costs: list[float]) -> None:
    clock = MeasuredClock({})
    for seconds in costs:
        assert clock.add_switch({}, seconds) == {"measured": seconds}
    clock.add_switch({}, None)
    expected = sum(costs) / len(costs) if costs else 0.0
    assert clock.switch_costs_s(DP, PP)["measured"] == pytest.approx(expected)
    assert clock.switch_costs_s(DP, replace(DP, mbs=2))["measured"] == 0.0
    assert clock.switch_s["measured"] == pytest.approx(sum(costs))


# --- what a policy sees ---------------------------------------------------------------------------


def shown(rule: ImprovedRule, times_s: list[float], num_warmup: int) -> Decision:
    """Show a rule iterations of PP4 at gbs 8, warm-up first, and return its last word."""
    for i, seconds in enumerate(times_s):
        seen = observe(PP, i + 1, estimate(100.0), iteration_s=seconds, train_s=10.0 * (i + 1))
        decision = rule.decide(replace(seen, is_warmup=i < num_warmup))
    return decision


def test_warmup_stays_out_of_t_cur_of_both_rules() -> None:
    times = [50.0, 40.0, *[0.2] * 8]
    for kind in (ImprovedRule, PaperRule):
        rule = kind(problem())
        rule.start()
        assert shown(rule, times, 2).details["t_cur_s"] == 0.2  # type: ignore[arg-type]
    improved = ImprovedRule(problem())
    improved.start()
    assert shown(improved, times[:2], 0).details["t_cur_s"] == 45.0


def test_a_cost_that_is_seen_during_warmup_is_learnt() -> None:
    rule = ImprovedRule(problem(TableTimes(TABLE)))
    rule.start()
    seen = observe(PP, 1, estimate(100.0), iteration_s=9.0, last_switch_s=7.5)
    rule.decide(replace(seen, is_warmup=True))
    assert shown(rule, [0.2] * 4, 0).details["cost_s"] in (0.0, 7.5)
    assert rule._cost_s(PP, DP.layout) == 7.5


def test_cona_runs_and_its_corrected_belief_meets_the_clock(make: Make) -> None:
    path = run(make("cona", budget={"seconds": 60.0}))
    seen = [d["details"]["t_cur_s"] for d in lines(path, "decision") if "t_cur_s" in d["details"]]
    known = {
        iteration_s(layout, gbs)
        for layout in (Layout(dp=d, tp=4 // d // p, pp=p) for d, p in ((4, 1), (1, 4), (2, 2)))
        for gbs in (8, 16, 32)
    } | {iteration_s(Layout(dp=1, tp=4, pp=1), gbs) for gbs in (8, 16, 32)}
    assert seen
    assert all(any(t == pytest.approx(k) for k in known) for t in seen)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "tier", "sentence"),
    [
        ("cona", {"techniques": {"zero_stage": 1}}, "zero_stage = 1: the megatron.*nearest: 0"),
        ("cona", {"techniques": {"virtual_stages": 2}}, "virtual_stages = 2.*nearest: 1"),
        ("cona", {"engine": {"switch_path": "universal"}}, "switch_path universal.*valid: live"),
    ],
)
def test_what_real_ranks_cannot_do(make: Make, policy: str, tier: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Setup(make(policy, **tier))


@pytest.mark.parametrize(
    ("engine", "techniques", "sentence"),
    [
        (EngineSpec(precision="fp16"), Techniques(), "precision fp16 needs a GPU.*nearest: fp32"),
        (EngineSpec(), Techniques(sequence_parallel=True), "needs a GPU.*nearest: False"),
    ],
)
def test_what_takes_a_gpu(engine: EngineSpec, techniques: Techniques, sentence: str) -> None:
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        pytest.raises(ConfigError, match=sentence),
    ):
        refuse_without_gpu(engine, techniques)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_an_overflow_is_skipped_and_counted(make: Make, monkeypatch: Any, precision: str) -> None:
    original = ToyLiveEngine.train_step

    def overflow(self: ToyLiveEngine, *args: Any, **kwargs: Any) -> Any:
        stats = original(self, *args, **kwargs)
        fault = {"grad_norm": math.inf, "sum_sq_microbatch": math.inf, "skipped": True}
        return replace(stats, **fault) if self.num_steps == 5 else stats

    monkeypatch.setattr(ToyLiveEngine, "train_step", overflow)
    for policy in ("cona", "fixed-best-gbs8"):
        path = run(make(policy, precision, engine={"precision": precision}))
        result = read_json(path)
        assert (result["status"], result["num_skipped"]) == ("finished", 1)
        (skipped,) = (step for step in lines(path, "step") if step["skipped"])
        assert (skipped["grad_norm"], skipped["tr_sigma"]) == (None, None)
        assert skipped["iteration"] == 5


def test_no_policy_is_offered_a_layout_that_the_engine_lacks(make: Make) -> None:
    megatron = Setup(make()).space
    deepspeed = Setup(make(engine={"kind": "deepspeed"}, techniques={"zero_stage": 1})).space
    assert {layout.pp for layout in megatron.layouts} > {1}
    assert set(deepspeed.layouts) == {layout for layout in megatron.layouts if layout.pp == 1}
    assert "no pipeline parallelism" in str(deepspeed.why_not(PP))


def test_recomputation_is_carried_out_as_asked(make: Make) -> None:
    setup = Setup(make(techniques={"recompute": "full"}))
    assert setup.space.at(8)[0].techniques == Techniques(recompute="full")


def test_a_process_without_ranks_says_how_to_get_them(make: Make) -> None:
    with pytest.raises(ConfigError, match="--clock measured --nproc 4"):
        run(replace(make(), ranks=None))


def test_real_ranks_price_the_model_that_they_train(make: Make, tmp_path: Path) -> None:
    big = tiny_model(name="big", num_layers=8)
    small = tiny_model(priced_as="big")
    for spec in (big, small):
        path = tmp_path / "config" / "models" / f"{spec.name}.yaml"
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    measured = Setup(make())
    assert measured.priced_model.name == measured.space.model.name == "tiny"
    assert measured.clock().facts["priced_as"] == "tiny"


# --- what comes after -----------------------------------------------------------------------------


def test_clocks_are_not_compared(make: Make) -> None:
    measured = Setup(make())
    modelled = Setup(make(clock={}, budget={"iterations": 60}))
    assert measured.comparison_key != modelled.comparison_key
    assert measured.run_key != modelled.run_key


def test_settings_of_the_measured_clock_are_no_part_of_a_modelled_run(make: Make) -> None:
    plain = Setup(make(clock={}, budget={"iterations": 60}))
    other = make(
        clock={"warmup_iterations": 5},
        budget={"iterations": 60, "seconds": 9.0},
        engine={"precision": "bf16"},
    )
    assert Setup(other).run_key == plain.run_key
    assert Setup(make(engine={"precision": "bf16"})).run_key != Setup(make()).run_key


@pytest.mark.usefixtures("there_and_back")
def test_tables_and_figures_of_measured_runs(make: Make, tmp_path: Path) -> None:
    run(make())
    run(make("rampup-ramp0.2", budget={"seconds": 30.0}))
    results = tmp_path / "results"
    for path in write_tables(results, "tiny"):
        text = Path(path).read_text(encoding="utf-8")
        assert "modelled" not in text
    assert write_figures(results, "tiny")
    assert {r.clock["kind"] for r in load_runs(results, "tiny")} == {"measured"}
