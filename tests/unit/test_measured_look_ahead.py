"""Looking ahead and engines of their own on real ranks, and the budget that nobody gave.

One process stands for the ranks, as in test_measured; real ones are in tests/distributed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_runs import CrashError, Make, course, events, lines
from problems import TABLE, TableTimes
from toy_live_engine import ToyLiveEngine

from baselines.oracle import GreedyOracle
from cona.engine.factory import check, lacking
from cona.errors import ConfigError, RunError
from cona.runlog import read_json
from cona.runner import Interrupted, run
from cona.setup import Setup
from cona.specs import EngineSpec
from cona.strategy import Strategy, Techniques

ORACLE = "greedy-oracle"
PAPER = "cona-paper-engine=deepspeed"
DP, PP = Strategy.parse("dp4-tp1-pp1-mbs1-gbs8"), Strategy.parse("dp1-tp1-pp4-mbs1-gbs8")
LARGER = Strategy.parse("dp4-tp1-pp1-mbs1-gbs16")

few_examples = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every policy and the reference the times of `TABLE`."""
    monkeypatch.setattr("cona.scene.time_model", lambda *_: TableTimes(TABLE))


def begun(request: Any, strategy: Strategy = DP, iterations: int = 3) -> Any:
    """Return a run's walk after some iterations."""
    request.folder.mkdir(parents=True, exist_ok=True)
    walk = Setup(request).trajectory()
    walk.begin(strategy)
    for _ in range(iterations):
        walk.iterate(strategy)
    return walk


# --- looking ahead --------------------------------------------------------------------------------

stages = st.tuples(st.sampled_from([DP, PP, LARGER]), st.integers(0, 3))
forks = st.lists(stages, min_size=1, max_size=3)


@given(st.lists(forks, min_size=1, max_size=3))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_fork_leaves_no_trace(make: Make, tmp_path: Path, forks: Any) -> None:
    results = f"results-{len(list(tmp_path.iterdir()))}"
    walk, other = begun(make(results=f"{results}-a")), begun(make(results=f"{results}-b"))
    for fork in forks:
        walk.probe(fork)
    engines = [w._trainer._engine for w in (walk, other)]
    assert np.array_equal(*[engine.logits for engine in engines])
    assert engines[0].layout == engines[1].layout
    for strategy in (DP, LARGER, LARGER):
        ours, theirs = walk.iterate(strategy), other.iterate(strategy)
        assert ours.record == theirs.record
    assert walk.gns.estimate() == other.gns.estimate()


def test_a_fork_is_what_going_there_gives(make: Make) -> None:
    ahead, gone = begun(make(results="a")), begun(make(results="b"))
    seen = ahead.probe([(PP, 2), (LARGER, 3)])
    gone.switch(DP, PP)
    for strategy in [PP] * 2 + [LARGER] * 3:
        gone.iterate(strategy)
    assert gone.probe([(LARGER, 0)]) == seen
    assert ahead.probe([(DP, 0)]) != seen
    evaluation = gone._trainer.evaluate(8, "probe").record
    assert evaluation.nats / evaluation.num_tokens == seen


def test_a_fork_ends_where_the_model_diverges(make: Make, monkeypatch: Any) -> None:
    walk = begun(make())
    monkeypatch.setattr(ToyLiveEngine, "_nats", lambda self, batch: float("nan"))
    assert walk.probe([(DP, 1)]) == float("inf")


def test_after_a_fork_in_another_layout_the_ranks_are_cold(make: Make) -> None:
    walk = begun(make(), iterations=4)
    walk.probe([(LARGER, 2)])
    assert not walk.iterate(DP).is_warmup
    walk.probe([(PP, 2)])
    assert [walk.iterate(DP).is_warmup for _ in range(3)] == [True, True, False]


def test_an_oracle_runs_at_no_cost_on_the_clock(make: Make) -> None:
    path = run(make(ORACLE, oracle={"decisions": 4}))
    result, steps = read_json(path), lines(path, "step")
    probes = lines(path, "probe", "measured.jsonl")
    assert {Strategy.parse(s["strategy"]).gbs for s in steps} <= {8, 16, 32}
    charged = sum(s["iteration_s"] for s in steps)
    assert result["compute_s"] == pytest.approx(charged)
    assert result["train_s"] == pytest.approx(charged + result["switch_s"]["measured"])
    assert result["probe_s"] == pytest.approx(sum(p["seconds"] for p in probes))
    assert result["probe_s"] > 0
    decisions = lines(path, "decision")
    assert decisions
    # At the start and at every decision: the state as it is, and the three batch sizes.
    assert len(probes) == 4 * (1 + len(decisions))
    assert [p["from"] for p in probes[:4]] == [0] * 4
    (done,) = events(path, "finished")
    forked = sum(n for p in probes for _, n in p["stages"])
    assert done["trained"] == len(steps) + forked


def test_a_decision_is_the_best_of_its_forks(make: Make) -> None:
    path = run(make(ORACLE, budget={"seconds": 60.0}))
    decisions, probes = lines(path, "decision"), lines(path, "probe", "measured.jsonl")
    assert len({d["next"] for d in decisions}) > 1 or decisions
    for decision in decisions:
        here = [p for p in probes if p["from"] == decision["iteration"]]
        before, *after = (p["nats"] / p["num_tokens"] for p in here)
        scores = {}
        for probe, value in zip(here[1:], after, strict=True):
            ((name, count),) = probe["stages"]
            strategy = Strategy.parse(name)
            seconds = count * TABLE[str(strategy.layout), strategy.gbs]
            scores[name] = (before - value) / seconds
        assert decision["next"] == max(scores, key=lambda name: scores[name])
        assert set(scores) == {str(PP), f"{PP.layout}-mbs1-gbs16", f"{DP.layout}-mbs1-gbs32"}


@pytest.mark.parametrize("policy", [ORACLE, "merrill"])
@pytest.mark.parametrize("after", [1, 2, 40, 77])
def test_a_crash_leads_to_the_same_decisions(
    make: Make, crash: Any, policy: str, after: int
) -> None:
    tier = {"oracle": {"decisions": 4}, "controller": {"min_iterations": 2, "min_samples": 16}}
    whole = run(make(policy, "whole", **tier))
    crash("train_step", after)
    request = make(policy, "parts", **tier)
    with pytest.raises(CrashError):
        run(request)
    path = run(request)
    n = min(len(course(path)), len(course(whole))) - 1  # repeated warm-up takes time
    assert course(path)[:n] == course(whole)[:n]
    ours, theirs = ([d["details"] for d in lines(p, "decision")] for p in (path, whole))
    assert ours[: len(theirs)] == theirs[: len(ours)]
    assert ours


def test_a_signal_in_a_fork_saves_the_state_before_it(make: Make, monkeypatch: Any) -> None:
    whole = run(make(ORACLE, "whole"))
    original, forks = ToyLiveEngine.snapshot, 0

    def signalled(self: ToyLiveEngine) -> Any:
        nonlocal forks
        forks += 1
        if forks == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    monkeypatch.setattr(ToyLiveEngine, "snapshot", signalled)
    request = make(ORACLE, "parts")
    with pytest.raises(Interrupted):
        run(request)
    assert forks == 7
    path = run(request)
    assert not events(path, "work repeated")
    n = min(len(course(path)), len(course(whole))) - 1
    assert course(path)[:n] == course(whole)[:n]
    # What was seen before is not looked at again, but for the fork that was cut short.
    assert forks == len(lines(path, "probe", "measured.jsonl")) + 1


def test_a_fork_right_behind_a_checkpoint_is_not_run_again(make: Make) -> None:
    request, fork = make(ORACLE), [(PP, 2)]
    walk = begun(request, iterations=8)  # there is a checkpoint at 64 samples
    found = walk.probe(fork)
    walk.keep()
    again = begun(request, iterations=8)
    assert again.probe(fork) == found
    assert again.num_trained == 0


def test_other_forks_than_recorded_are_refused(make: Make, monkeypatch: Any) -> None:
    request = make(ORACLE)
    path = run(request)
    path.unlink()
    original = GreedyOracle._num_iterations
    monkeypatch.setattr(GreedyOracle, "_num_iterations", lambda s, g: original(s, g) + 1)
    with pytest.raises(RunError, match="something else here .a fork at iteration 0"):
        run(request)


# --- the budget -----------------------------------------------------------------------------------


def test_without_seconds_the_budget_follows_from_the_time_source(make: Make) -> None:
    request = make("fixed-best-gbs8", budget={"iterations": 100})
    setup = Setup(request)
    assert setup.time_budget_s == setup.problem().time_budget_s == pytest.approx(100 * 0.2)
    result = read_json(run(request))
    assert result["time_budget_s"] == setup.time_budget_s
    assert 19 < result["train_s"] <= 20
    given = {"iterations": 100, "seconds": 5.0}
    assert Setup(make(budget=given)).time_budget_s == 5.0


@given(st.integers(1, 10**6), st.sampled_from(["megatron", "deepspeed"]))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_derived_budget_grows_with_the_iterations(make: Make, n: int, kind: str) -> None:
    engine = {"engine": {"kind": kind}, "techniques": {"zero_stage": int(kind == "deepspeed")}}
    fastest_s = {"megatron": 0.2, "deepspeed": 0.3}[kind]  # no pipelines
    assert Setup(make(budget={"iterations": n}, **engine)).time_budget_s == n * fastest_s


# --- a policy's own engine ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [PAPER, "fixed-best-gbs8-engine=deepspeed"])
def test_a_policy_brings_its_engine(make: Make, policy: str) -> None:
    request = make(policy)
    path = run(request)
    engine = {"kind": "deepspeed", "precision": "fp32", "switch_path": "universal"}
    assert read_json(path)["clock"]["engine"] == engine
    (head,) = lines(path, "head", "measured.jsonl")
    assert head["engine"] == engine
    tier = read_json(path.with_name("run.json"))["tier"]
    assert tier["engine"] == engine
    assert tier["techniques"]["zero_stage"] == 1
    assert {Strategy.parse(s["strategy"]).pp for s in lines(path, "step")} == {1}
    built = request.ranks.built
    assert {(e.kind, t.zero_stage) for e, t in built} == {("deepspeed", 1)}


@pytest.mark.parametrize(("asked", "zero_stage"), [(0, 1), (1, 1), (2, 2)])
def test_zero_is_at_least_one(make: Make, asked: int, zero_stage: int) -> None:
    setup = Setup(make(PAPER, techniques={"zero_stage": asked}))
    assert setup.tier.techniques.zero_stage == zero_stage
    assert {s.techniques.zero_stage for s in setup.space.at(8)} == {zero_stage}


@pytest.mark.parametrize("budget", [{"iterations": 500}, {"seconds": 30.0}])
def test_the_engine_changes_no_budget(make: Make, budget: dict[str, Any]) -> None:
    tiers = Setup(make("cona-paper", budget=budget))
    own = Setup(make(PAPER, budget=budget))
    assert own.time_budget_s == tiers.time_budget_s
    assert own.problem().time_budget_s == tiers.time_budget_s
    assert own.comparison_key == tiers.comparison_key
    assert own.run_key != tiers.run_key
    assert {s.pp for s in tiers.space.at(8)} > {s.pp for s in own.space.at(8)} == {1}
    zero = {"techniques": {"zero_stage": 2}, "budget": budget}
    assert Setup(make(PAPER, **zero)).time_budget_s == tiers.time_budget_s


def test_megatron_on_a_tier_of_deepspeed(make: Make) -> None:
    tier = {"engine": {"kind": "deepspeed"}, "techniques": {"zero_stage": 2}}
    setup = Setup(make("cona-paper-engine=megatron", **tier))
    assert (setup.tier.engine.kind, setup.tier.engine.switch_path) == ("megatron", "live")
    assert setup.tier.techniques.zero_stage == 0
    assert max(layout.pp for layout in setup.space.layouts) > 1


@pytest.mark.parametrize(
    ("policy", "tier", "sentence"),
    [
        (PAPER, {"clock": {}}, "'cona-paper-engine=deepspeed': the modelled clock has one engine"),
        ("cona-paper-engine=deepsped", {}, "engine = deepsped: input should be 'megatron' or"),
        ("cona-engine=deepspeed", {}, "unknown parameter 'engine=deepspeed'"),
        (PAPER, {"techniques": {"sequence_parallel": True}}, "the deepspeed engine has no such"),
        (PAPER, {"techniques": {"zero_stage": 3}}, "no universal switch can go.*nearest: 2"),
        (PAPER, {"engine": {"precision": "fp16"}}, "precision fp16: the scale.*nearest: bf16"),
        ("cona", {"engine": {"kind": "deepspeed"}}, "zero_stage = 0: the deepspeed.*nearest: 1"),
    ],
)
def test_what_no_engine_can_do(make: Make, policy: str, tier: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Setup(make(policy, **tier))


@given(
    st.sampled_from(["megatron", "deepspeed"]),
    st.integers(0, 3),
    st.sampled_from(["none", "selective", "full"]),
    st.booleans(),
)
def test_the_nearest_that_is_offered_is_accepted(
    kind: Any, zero_stage: int, recompute: Any, sequence_parallel: bool
) -> None:
    engine = EngineSpec(kind=kind)
    asked = {
        "zero_stage": zero_stage,
        "recompute": recompute,
        "sequence_parallel": sequence_parallel,
    }
    offered = lacking(engine, Techniques(**asked))
    check(engine, Techniques(**asked | offered))
    assert not lacking(engine, Techniques(**asked | offered))
