"""Replays: by hand on a table of times, equal to the recorded run, from 4 to 4,096 GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from problems import DP4, PP4, TABLE, TableTimes, tiny_cluster, tiny_model, tiny_tier

import cona.scene
from baselines.fixed_best import FixedBest
from cona import cli, config
from cona.cost import SwitchCost
from cona.errors import ConfigError, PolicyError, RunError
from cona.replay.replay import ReplayRequest, replay
from cona.replay.trace import GnsTrace
from cona.replay.trace_csv import read_trace
from cona.replay.walk import Walk
from cona.runlog import read_json
from cona.runner import run
from cona.scene import Scene
from cona.setup import RunRequest
from cona.specs import TierSpec


def rows(*points: tuple[float, float]) -> GnsTrace:
    samples, gns = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    return GnsTrace(samples=samples, gns=gns, gns_se=np.zeros(len(samples)))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return the tiny model on four GPUs, priced by `TABLE` in truth and in belief."""
    monkeypatch.setattr(cona.scene, "time_model", lambda *_: TableTimes(TABLE))
    model, cluster = tiny_model(), tiny_cluster()
    return Scene(
        tier=tiny_tier(budget={"iterations": 1000}),
        trained_model=model,
        model=model,
        cluster=cluster,
        reference=TableTimes(TABLE),
        switch_cost=SwitchCost(model, cluster),
    )


# --- by hand ------------------------------------------------------------------------------------

RISING = rows((0, 1), (1000, 101))
"""GNS = 1 + samples/10."""


def test_a_chain_by_hand(scene: Scene) -> None:
    # GNS* = B1*B2*(T2-T1)/(B2*T1-B1*T2). From gbs 8 (0.2 s) to 16 (0.3 s): 12.8/0.8 = 16, which is
    # passed after 150 samples: at 152. From 16 to 32 (0.45 s): 76.8/2.4 = 32, passed after 310, at
    # 152 + 10*16 = 312.
    done = Walk(scene, "cona-cost=off", RISING).finish()
    chain = [(str(s.strategy.layout), s.strategy.gbs, s.samples) for s in done.stages]
    assert chain == [(PP4, 8, 0), (PP4, 16, 152), (DP4, 32, 312)]
    assert [s.gns for s in done.stages] == [None, pytest.approx(16.2), pytest.approx(32.2)]
    assert [s.num_iterations for s in done.stages[:2]] == [19, 10]
    assert [s.iteration_s for s in done.stages] == [0.2, 0.3, 0.45]
    assert [s.compute_s for s in done.stages[:2]] == pytest.approx([3.8, 3.0])
    assert [s.believed_s for s in done.stages] == [0.2, 0.3, 0.45]
    assert [s.switch_s for s in done.stages] == [0.0, 0.0, pytest.approx(0.5, rel=1e-3)]
    assert done.stages[2].train_s == pytest.approx(3.8 + 3.0 + done.stages[2].switch_s)


def test_times_and_samples_add_up(scene: Scene) -> None:
    done = Walk(scene, "cona-cost=off", RISING).finish()
    assert done.samples == sum(s.num_iterations * s.strategy.gbs for s in done.stages)
    seconds = sum(s.compute_s + s.switch_s for s in done.stages)
    assert done.train_s == pytest.approx(seconds)
    assert done.train_s <= done.problem.time_budget_s < done.train_s + done.stages[-1].iteration_s


def test_a_walk_may_end_with_the_trace(scene: Scene) -> None:
    assert Walk(scene, "fixed-best-gbs32", RISING, until=1000).finish().samples == 1024


def test_noise_below_the_threshold_switches_nothing(scene: Scene) -> None:
    done = Walk(scene, "cona-cost=off", rows((0, 15.9))).finish()
    assert [str(s.strategy) for s in done.stages] == [f"{PP4}-mbs1-gbs8"]


def test_a_wide_error_delays_the_switch(scene: Scene) -> None:
    trace = GnsTrace(
        samples=np.array([0.0, 1000.0]), gns=np.array([1.0, 101.0]), gns_se=np.array([0.1, 10.1])
    )
    late, early = (Walk(scene, "cona-cost=off", t).finish().stages[1] for t in (trace, RISING))
    assert late.samples > early.samples


def test_a_policy_that_looks_ahead_is_refused(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"'greedy-oracle' looks ahead by training.*cona"):
        Walk(scene, "greedy-oracle", RISING)


def test_a_policy_that_fails_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedBest, "decide", lambda self, observation: 1 / 0)
    with pytest.raises(PolicyError, match=r"decide\(\) at sample 32 failed: ZeroDivisionError"):
        Walk(scene, "fixed-best-gbs32", RISING).finish()


def test_an_iteration_longer_than_the_budget_is_refused(scene: Scene) -> None:
    short = scene.under(tiny_tier(budget={"iterations": 1}))
    with pytest.raises(RunError, match=r"one iteration of .* longer than the whole budget"):
        Walk(short, "fixed-best-gbs32", RISING).finish()


# --- a recorded run -----------------------------------------------------------------------------


@pytest.fixture
def request_of(toy_runs: Path, small_corpus: str) -> Any:
    """Return a function that requests a run of the tiny model under the toy engine."""
    tier = tiny_tier(
        cluster="tiny-cluster", data={"corpus": small_corpus}, budget={"iterations": 150}
    )

    def build(policy: str) -> RunRequest:
        return RunRequest(tier=tier, model="tiny", policy=policy, seed=0, results=toy_runs)

    return build


KEYS = ("strategy", "samples", "train_s")


@pytest.mark.parametrize("policy", ["cona", "cona-paper", "rampup-ramp0.2", "fixed-best-gbs16"])
def test_the_chain_is_the_one_that_was_recorded(request_of: Any, policy: str) -> None:
    request = request_of(policy)
    result = read_json(run(request))
    if policy != "fixed-best-gbs16":
        assert len(result["stages"]) > 1  # else the comparison would show nothing
    asked = ReplayRequest(tier=request.tier, model="tiny", policy=policy)
    done = replay(asked, read_trace(request.folder))
    again = [(str(s.strategy), s.samples, s.train_s) for s in done.stages]
    assert again == [tuple(s[k] for k in KEYS) for s in result["stages"]]
    assert (done.samples, done.train_s) == (result["samples"], result["train_s"])
    assert done.notes == ()


def test_the_command_takes_the_tier_of_the_run(request_of: Any) -> None:
    request = request_of("cona")
    result = read_json(run(request))
    words = ["replay", "--trace", str(request.folder), "--policy", "cona", "--model", "tiny"]
    answer = CliRunner().invoke(cli.main, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    content = json.loads(answer.stdout)
    assert content["tier"] == "tiny"
    assert [s["samples"] for s in content["stages"]] == [s["samples"] for s in result["stages"]]
    assert content["time_budget_s"] == result["time_budget_s"]


def test_another_policy_sees_the_noise_of_the_run(request_of: Any) -> None:
    request = request_of("fixed-best-gbs8")
    run(request)
    asked = ReplayRequest(tier=request.tier, model="tiny", policy="fixed-best-gbs32")
    done = replay(asked, read_trace(request.folder))
    assert done.stages[0].strategy.gbs == 32
    assert done.notes == (
        f"the trace ends after 1,200 of {done.samples:,} samples, {120_000 / done.samples:.3g} %: "
        "what comes after sees its last noise scale",
    )


# --- clusters and budgets -----------------------------------------------------------------------

QUICK = config.load(TierSpec, "quick")


def on(cluster: str, policy: str, *, covers_trace: bool = False, **changes: object) -> Any:
    tier = config.override(QUICK, {"cluster": cluster, **changes})
    request = ReplayRequest(tier=tier, model="gpt3-1.3b", policy=policy, covers_trace=covers_trace)
    return replay(request, rows((0, 8), (4000, 60), (8000, 500)))


@pytest.mark.parametrize(
    ("cluster", "num_gpus", "rungs"),
    [
        ("a100x4-2node", 4, (8, 16, 32, 64)),
        ("dgx-h100@8", 64, (8, 16, 32, 64)),
        ("dgx-h100@512", 4096, (64, 128, 256, 512)),
    ],
)
def test_from_4_to_4096_gpus(cluster: str, num_gpus: int, rungs: tuple[int, ...]) -> None:
    # 4,096 = dp*tp*pp with pp <= 8 of 24 layers and, as Calculon has it, tp inside a node of 8
    # leaves dp >= 64: gbs 8 to 32 have no strategy, so the ladder begins at 64.
    done = on(cluster, "cona-paper")
    assert all(s.strategy.num_gpus == num_gpus for s in done.stages)
    assert done.problem.rungs == rungs
    assert [s.strategy.gbs for s in done.stages] == list(rungs[: len(done.stages)])
    assert all(s.compute_s > 0 for s in done.stages)
    assert any("the ladder is gbs 64 to 512" in n for n in done.notes) == (num_gpus == 4096)


@pytest.mark.slow
def test_cona_on_4096_gpus() -> None:
    done = on("dgx-h100@512", "cona")
    assert done.problem.rungs == (32, 64, 128, 256)  # `improved` lets tp 16 cross nodes
    assert len(done.stages) > 1
    assert {s.strategy.num_gpus for s in done.stages} == {4096}


def test_a_budget_that_ends_before_the_trace_is_lengthened() -> None:
    short = on("a100x4-2node", "fixed-best-gbs8")
    assert short.samples == 3200  # 400 iterations
    whole = on("a100x4-2node", "fixed-best-gbs8", covers_trace=True)
    assert whole.samples == 8000
    assert whole.problem.time_budget_s == pytest.approx(2.5 * short.problem.time_budget_s)
    assert whole.notes[0].startswith("the budget is 1,000 iterations at gbs 8, as long as")


def test_a_budget_that_outlasts_the_trace_stays() -> None:
    done = on("a100x4-2node", "fixed-best-gbs8", covers_trace=True, **{"budget.iterations": 1200})
    assert done.samples == 9600
    assert done.notes == (
        "the trace ends after 8,000 of 9,600 samples, 83.3 %: what comes after sees its last noise "
        "scale",
    )


def test_a_trace_of_tokens_is_refused_before_it_is_walked() -> None:
    request = ReplayRequest(
        tier=QUICK, model="gpt3-1.3b", policy="fixed-best-gbs8", covers_trace=True
    )
    with pytest.raises(ConfigError, match=r"125,000,000 iterations .* set budget.iterations"):
        replay(request, rows((0, 8), (1e9, 60)))


# --- the command --------------------------------------------------------------------------------


def invoke(*words: str) -> Any:
    return CliRunner().invoke(cli.main, words)


@pytest.fixture
def trace_csv(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("samples,gns\n0,8\n4000,60\n")
    return str(path)


def test_the_command_prints_every_stage(trace_csv: str) -> None:
    words = ("replay", "--trace", trace_csv, "--policy", "rampup", "--model", "gpt3-1.3b-proxy")
    text, content = invoke(*words).stdout, json.loads(invoke(*words, "--json").stdout)
    assert "gpt3-1.3b-proxy (priced as gpt3-1.3b) on a100x4-2node" in text
    for stage in content["stages"]:
        assert stage["strategy"] in text and stage["reason"] in text
    assert content["clock"] == "modelled"
    assert content["stages"][0]["gns"] is None
    spent = sum(s["compute_s"] + s["switch_s"] for s in content["stages"])
    assert spent == pytest.approx(content["train_s"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--policy", "greedy-oracle"), "looks ahead by training"),
        (("--policy", "conaa"), "did you mean 'cona'?"),
        (("--policy", "cona", "--cluster", "dgx-h10"), "did you mean"),
        (("--policy", "cona", "--tier", "quik"), "did you mean 'quick'?"),
        (("--policy", "cona", "--set", "budget.iteration=3"), "did you mean 'iterations'?"),
        (("--policy", "fixed-best-gbs3", "--cluster", "dgx-h100@512"), "gbs 3"),
    ],
)
def test_mistakes_are_one_sentence(trace_csv: str, words: tuple[str, ...], sentence: str) -> None:
    answer = invoke("replay", "--trace", trace_csv, "--model", "gpt3-1.3b", *words)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("Error: ") and answer.stderr.count("\n") == 1
    assert sentence in answer.stderr


def test_a_budget_that_was_asked_for_is_not_lengthened(trace_csv: str) -> None:
    words = ("replay", "--trace", trace_csv, "--policy", "fixed-best-gbs8", "--json")
    words = (*words, "--model", "gpt3-1.3b", "--set", "budget.iterations=10")
    assert json.loads(invoke(*words).stdout)["samples"] == 80


def test_a_run_is_written_as_a_csv_and_replayed(request_of: Any, tmp_path: Path) -> None:
    request = request_of("cona")
    run(request)
    out = tmp_path / "gns.csv"
    answer = invoke("trace", str(request.folder), "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert out.read_text().startswith("samples,gns,gns_se\n")
    asked = ReplayRequest(tier=request.tier, model="tiny", policy="cona")
    assert replay(asked, read_trace(out)).stages[0].samples == 0
