"""Runs whose numbers are none: stopped within the patience, labelled, and valid up to there."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import Make, lines
from toy_engine import ToyEngine

from cona.analysis.load import load_runs
from cona.analysis.tables import write_tables
from cona.divergence import DivergenceWatch
from cona.engine.base import EvalSums, StepStats
from cona.runlog import read_json
from cona.runner import Interrupted, run
from cona.segments import Step
from cona.setup import Setup
from cona.specs import DivergenceSpec

MODELLED = {"clock": {}, "budget": {"iterations": 60}}
CLOCKS: list[dict[str, Any]] = [MODELLED, {}]
"""What makes a run of the toy a modelled or a measured one."""

FAULTS: dict[str, dict[str, Any]] = {
    "loss": {"loss_nats": math.nan},
    "gradient": {"grad_norm": math.inf, "sum_sq_microbatch": math.inf, "skipped": True},
    "micro-batch": {"sum_sq_microbatch": math.nan, "grad_norm": math.nan, "skipped": True},
    "explosion": {"loss_nats": 1e9},
}

Break = Callable[[str, range], None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Return a function that gives the toy's iterations a fault, counted from 1."""
    original = ToyEngine.train_step

    def arm(fault: str, iterations: range) -> None:
        numbers = count(1)

        def train_step(self: ToyEngine, *args: Any, **kwargs: Any) -> StepStats:
            stats = original(self, *args, **kwargs)
            return replace(stats, **FAULTS[fault]) if next(numbers) in iterations else stats

        monkeypatch.setattr(ToyEngine, "train_step", train_step)

    return arm


def step(loss: float | None = 1.0, grad_norm: float | None = 1.0) -> Step:
    numbers = {"lr": 0.1, "tr_sigma": None, "mu_sq": None, "skipped": grad_norm is None}
    counts = {"iteration": 1, "samples": 8, "num_tokens": 1}
    return Step(loss_nats=loss, grad_norm=grad_norm, **counts, **numbers)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_a_run_has_diverged_after_so_many_lost_iterations_in_a_row(
    lost: list[bool], patience: int
) -> None:
    watch = DivergenceWatch(DivergenceSpec(patience_iterations=patience))
    for end, is_lost in enumerate(lost, start=1):
        last = lost[max(0, end - patience) : end]
        expected = len(last) == patience and all(last)
        assert watch.see(step(loss=None) if is_lost else step()) is expected


def test_a_loss_is_too_large_beside_the_first_one_that_is_a_number() -> None:
    watch = DivergenceWatch(DivergenceSpec(patience_iterations=2, loss_factor=2.0))
    losses = [None, 3.0, 6.0, 6.1, 5.9, 6.1, 6.1]
    assert [watch.see(step(loss)) for loss in losses] == [False] * 6 + [True]


def test_skipped_updates_are_counted_apart() -> None:
    watch = DivergenceWatch(DivergenceSpec(patience_iterations=3))
    for numbers in ({"loss": None}, {"grad_norm": None}, {}, {"grad_norm": None}):
        assert not watch.see(step(**numbers))
    assert watch.num_skipped == 2


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_ends_when_its_patience_does(
    make: Make, broken: Break, clock: dict[str, Any], fault: str
) -> None:
    broken(fault, range(21, 1000))
    request = make(divergence={"patience_iterations": 5}, **clock)
    path = run(request)
    result, steps, evals = read_json(path), lines(path, "step"), lines(path, "eval")
    assert result["status"] == "diverged"
    assert result["iterations"] == len(steps) == 25
    assert result["ppl"] is None
    # Evaluations up to there, every 32 samples, are as good as any: TTPs are read from them.
    assert [e["samples"] for e in evals[:7]] == [0, 32, 64, 96, 128, 160, 192]
    assert result["best_ppl"] == min(e["ppl"] for e in evals)
    assert result.get("num_skipped", 0) == sum(s["skipped"] for s in steps)
    assert {s["gns"] is None for s in steps[1:]} == {False}
    assert b"NaN" not in path.with_name("metrics.jsonl").read_bytes()
    before = path.read_bytes()
    assert run(request).read_bytes() == before  # a finished run, and not tried again


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_shorter_fault_is_lived_through_and_counted(
    make: Make, broken: Break, clock: dict[str, Any], fault: str
) -> None:
    broken(fault, range(21, 25))
    path = run(make(divergence={"patience_iterations": 5}, **clock))
    result, steps = read_json(path), lines(path, "step")
    assert result["status"] == "finished"
    assert math.isfinite(result["ppl"])
    is_skipped = FAULTS[fault].get("skipped", False)
    assert result.get("num_skipped", 0) == (4 if is_skipped else 0)
    assert [s["iteration"] for s in steps if s["skipped"]] == [21, 22, 23, 24] * is_skipped


@pytest.mark.parametrize("clock", CLOCKS)
def test_an_evaluation_that_is_no_number_is_a_state(
    make: Make, monkeypatch: pytest.MonkeyPatch, clock: dict[str, Any]
) -> None:
    original = ToyEngine.evaluate
    calls = count(1)

    def evaluate(self: ToyEngine, batches: Any) -> EvalSums:
        sums = original(self, batches)
        return replace(sums, nats=math.nan) if next(calls) == 4 else sums

    monkeypatch.setattr(ToyEngine, "evaluate", evaluate)
    path = run(make(**clock))
    result, evals = read_json(path), lines(path, "eval")
    assert (result["status"], result["ppl"]) == ("diverged", None)
    assert [e["ppl"] is None for e in evals] == [False, False, False, True]
    assert evals[-1]["nats"] is evals[-1]["bits_per_byte"] is None


def test_tables_name_a_run_that_diverged_and_keep_its_evaluations(
    make: Make, broken: Break
) -> None:
    healthy = run(make(**MODELLED, policy="fixed-best-gbs16"))
    broken("loss", range(21, 1000))
    lost = run(make(**MODELLED, divergence={"patience_iterations": 3}))
    folder = make().results
    runs = {r.policy: r for r in load_runs(folder, "tiny")}
    assert len(runs["fixed-best-gbs8"].curve.ppl) == len(lines(lost, "eval"))
    written = write_tables(folder, "tiny")
    text = next(p for p in written if p.name == "ttp.md").read_text(encoding="utf-8")
    assert "Diverged: tiny/fixed-best-gbs8/seed0." in text
    assert read_json(healthy)["status"] == "finished"


def test_a_stop_in_the_middle_of_the_patience_changes_nothing(
    make: Make, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**MODELLED, "divergence": {"patience_iterations": 6}}
    broken("gradient", range(21, 1000))
    whole = run(make(**settings, results="whole"))
    broken("gradient", range(21, 1000))
    faulty, numbers = ToyEngine.train_step, count(1)

    def stop_at_23(self: ToyEngine, *args: Any, **kwargs: Any) -> StepStats:
        if next(numbers) == 23:
            os.kill(os.getpid(), signal.SIGTERM)
        return faulty(self, *args, **kwargs)

    monkeypatch.setattr(ToyEngine, "train_step", stop_at_23)
    with pytest.raises(Interrupted):
        run(make(**settings, results="parts"))
    path = run(make(**settings, results="parts"))
    for name in ("metrics.jsonl", "result.json"):
        assert path.with_name(name).read_bytes() == whole.with_name(name).read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_has_the_same_patience(make: Make, broken: Break, precision: str) -> None:
    broken("gradient", range(5, 1000))
    result = read_json(run(make(engine={"precision": precision})))
    assert (result["status"], result["iterations"]) == ("diverged", 24)
    assert result["num_skipped"] == 20


def test_a_run_that_does_not_diverge_is_the_same_whatever_the_patience(make: Make) -> None:
    default = run(make("cona", **MODELLED))
    other = run(make("cona", results="other", **MODELLED, divergence={"patience_iterations": 1}))
    assert other.with_name("metrics.jsonl").read_bytes() == (
        default.with_name("metrics.jsonl").read_bytes()
    )
    assert "num_skipped" not in read_json(default)


def test_the_default_patience_is_no_part_of_the_keys(make: Make) -> None:
    plain, same = Setup(make()), Setup(make(divergence={"patience_iterations": 20}))
    other = Setup(make(divergence={"patience_iterations": 21}))
    assert "divergence" not in plain.tier.settings()
    assert (plain.run_key, plain.config_hash) == (same.run_key, same.config_hash)
    assert plain.run_key != other.run_key


def test_a_probe_of_a_state_that_diverged_is_infinite(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ToyEngine.train_step

    def explode_at_32(self: ToyEngine, batch: Any, **kwargs: Any) -> StepStats:
        stats = original(self, batch, **kwargs)
        if len(batch) == 32:
            self.logits[:] = math.nan
        return stats

    monkeypatch.setattr(ToyEngine, "train_step", explode_at_32)
    path = run(make("greedy-oracle", **MODELLED))
    result, decisions = read_json(path), lines(path, "decision")
    assert result["status"] == "finished"
    assert {s["gbs"] for s in lines(path, "step")} <= {8, 16}
    assert decisions
    assert all(d["details"]["score_gbs32"] is None for d in decisions)
