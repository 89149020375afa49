"""Measured runs that are stopped: what a crash can cost, and that the same command continues.

One process stands for the ranks; real ones are in tests/distributed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from measured_runs import PP, CrashError, Make, course, events, lines
from toy_live_engine import WARM_S, OneProcess, ToyLiveEngine, iteration_s

from baselines.fixed_best import FixedBest
from cona.errors import RunError
from cona.runlog import read_json
from cona.runner import Interrupted, RunRequest, run
from cona.strategy import Strategy


@pytest.mark.usefixtures("there_and_back")
@pytest.mark.parametrize(
    ("method", "after"),
    [("train_step", 1), ("train_step", 13), ("train_step", 29), ("switch", 1), ("switch", 2)],
)
@pytest.mark.parametrize("torn", [b"", b'{"kind":"step","iter'])
@pytest.mark.fault("torn line")
def test_a_crash_anywhere_is_continued_to_the_same_losses(
    make: Make, crash: Callable[[str, int], None], method: str, after: int, torn: bytes
) -> None:
    whole = course(run(make(results="whole")))
    crash(method, after)
    request = make(results="parts")
    with pytest.raises(CrashError):
        run(request)
    with (request.folder / "measured.jsonl").open("ab") as file:
        file.write(torn)
    path = run(request)
    # The repeated warm-up takes time, so the budget ends a little earlier.
    parts = course(path)
    assert parts[: len(parts) - 1] == whole[: len(parts) - 1]
    assert len(parts) > 50
    steps = lines(path, "step", "measured.jsonl")
    assert [s["iteration"] for s in steps] == list(range(1, len(steps) + 1))
    assert read_json(path)["compute_s"] == pytest.approx(sum(s["seconds"] for s in steps))


def crashed(make: Make, crash: Callable[[str, int], None]) -> RunRequest:
    """Return the request of a run that died at its thirtieth iteration."""
    crash("train_step", 30)
    request = make()
    with pytest.raises(CrashError):
        run(request)
    return request


@pytest.mark.usefixtures("there_and_back")
def test_what_a_crash_costs_is_noted(make: Make, crash: Callable[[str, int], None]) -> None:
    request = crashed(make, crash)
    path = run(request)
    (repeated,) = events(path, "work repeated")
    # Checkpoints are at every 64 samples, 8 iterations: the last is at 24, and 29 were done.
    assert repeated["iterations"] == 5
    assert repeated["seconds"] >= 5 * iteration_s(PP.layout, 8)
    (done,) = events(path, "finished")
    assert done["read"] == 24
    assert [s["iteration"] for s in lines(path, "step") if s["is_warmup"]][-4:] == [25, 26, 41, 42]


@pytest.mark.usefixtures("there_and_back")
# 20: the layout changes before the run stops. A checkpoint is at 24 and 40, and then an evaluation;
# at 40 the layout changes, too.
@pytest.mark.parametrize("num_read", [18, 20, 24, 40])
def test_a_signal_saves_and_nothing_is_repeated(
    make: Make, monkeypatch: Any, num_read: int
) -> None:
    original = ToyLiveEngine.train_step

    def stop(self: ToyLiveEngine, *args: Any, **kwargs: Any) -> Any:
        if self.num_steps == num_read - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ToyLiveEngine, "train_step", stop)
    request = make()
    with pytest.raises(Interrupted):
        run(request)
    monkeypatch.setattr(ToyLiveEngine, "train_step", original)
    path = run(request)
    assert not events(path, "work repeated")
    assert events(path, "finished")[0]["read"] == num_read
    for step in lines(path, "step", "measured.jsonl"):
        layout = Strategy.parse(step["strategy"]).layout
        warm_s = WARM_S if step["seconds"] > WARM_S else 0.0
        assert step["seconds"] == pytest.approx(iteration_s(layout, 8) + warm_s)


@pytest.mark.fault("damaged checkpoint")
def test_two_checkpoints_are_kept_and_the_older_one_replaces_a_damaged_one(
    make: Make, crash: Callable[[str, int], None]
) -> None:
    request = crashed(make, crash)
    folder = request.folder / "checkpoints"
    assert {p.name for p in folder.iterdir()} == {"16", "24"}
    (folder / "24" / "state").write_bytes(b"")
    path = run(request)
    assert events(path, "finished")[0]["read"] == 16
    assert course(path)[:40] == course(run(make(results="whole")))[:40]
    assert len(list(folder.iterdir())) == 1  # the run is finished


def test_a_finished_run_keeps_its_last_checkpoint_and_goes_on_from_there(make: Make) -> None:
    request = make()
    path = run(request)
    whole, folder = course(path), request.folder / "checkpoints"
    last = lines(path, "checkpoint", "measured.jsonl")[-1]["iteration"]
    assert [p.name for p in folder.iterdir()] == [str(last)]
    path.unlink()
    assert course(run(request))[: last + 1] == whole[: last + 1]
    assert events(path, "finished")[-1]["read"] == last


def test_a_kill_before_checkpoints_are_dropped_is_made_up_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make()
    folder = request.folder / "checkpoints"
    with monkeypatch.context() as patch:
        patch.setattr("cona.runner.keep_last_checkpoint", mock.Mock(side_effect=CrashError))
        with pytest.raises(CrashError):
            run(request)
    before = (request.folder / "result.json").read_bytes()
    assert len(list(folder.iterdir())) == 2
    assert run(replace(request, ranks=None)).read_bytes() == before
    assert len(list(folder.iterdir())) == 1


def test_a_damaged_run_json_does_not_set_record_and_checkpoints_aside(
    make: Make, crash: Callable[[str, int], None]
) -> None:
    request = crashed(make, crash)
    (request.folder / "run.json").write_text('{"run_k')
    path = run(request)
    assert not (request.folder / "superseded").exists()
    assert events(path, "finished")[0]["read"] == 24


def test_without_any_checkpoint_a_run_starts_anew(make: Make, crash: Any) -> None:
    request = crashed(make, crash)
    shutil.rmtree(request.folder / "checkpoints")
    said: list[str] = []
    path = run(request, say=said.append)
    assert events(path, "finished")[0]["read"] == 0
    assert events(path, "work repeated")[0]["iterations"] == 29
    reason = "no checkpoint can be used: the folders are gone"
    assert events(path, "work repeated")[0]["reason"] == reason
    assert said == [f"{reason}; the run starts again from the beginning"]


def test_damaged_checkpoints_alone_are_said_to_be_damaged(make: Make, crash: Any) -> None:
    request = crashed(make, crash)
    for path in (request.folder / "checkpoints").glob("*/state"):
        path.write_bytes(b"")
    said: list[str] = []
    assert events(run(request, say=said.append), "finished")[0]["read"] == 0
    (line,) = said
    assert line.startswith("no checkpoint can be used: ")
    assert line.endswith("; the run starts again from the beginning")


def test_a_crash_before_the_first_checkpoint_is_nothing_to_tell(make: Make, crash: Any) -> None:
    crash("train_step", 3)
    request = make()
    with pytest.raises(CrashError):
        run(request)
    path = run(request, say=pytest.fail)
    assert "reason" not in events(path, "work repeated")[0]


def test_other_hardware_does_not_continue_a_run(make: Make, crash: Any) -> None:
    request = crashed(make, crash)
    elsewhere = OneProcess()
    elsewhere.hardware["device"] = "another"
    with pytest.raises(RunError, match="made with hardware .*toy.* but now it is .*another"):
        run(replace(request, ranks=elsewhere))  # type: ignore[arg-type]


def test_another_decision_at_a_recorded_point_is_refused(make: Make, monkeypatch: Any) -> None:
    request = make()
    path = run(request)
    path.unlink()
    monkeypatch.setattr(FixedBest, "start", lambda self, problem: PP)
    with pytest.raises(RunError, match="this run would do something else here"):
        run(request)


def test_other_settings_set_record_and_checkpoints_aside(make: Make) -> None:
    request = make()
    run(request)
    path = run(make(budget={"seconds": 20.0}))
    assert read_json(path)["time_budget_s"] == 20.0
    (aside,) = (path.parent / "superseded").iterdir()
    names = {p.name for p in aside.iterdir()}
    assert {"measured.jsonl", "checkpoints", "metrics.jsonl", "result.json"} <= names


def test_a_finished_run_is_not_touched(make: Make) -> None:
    request = make()
    before = run(request).read_bytes()
    built = ToyLiveEngine.num_built
    assert run(replace(request, ranks=None)).read_bytes() == before
    assert ToyLiveEngine.num_built == built


def test_a_checkpoint_that_is_refused_is_neither_skipped_nor_deleted(
    make: Make, crash: Callable[[str, int], None]
) -> None:
    request = crashed(make, crash)
    before = sorted((request.folder / "checkpoints").iterdir())
    with (
        mock.patch.object(ToyLiveEngine, "load", side_effect=RunError("of another model")),
        pytest.raises(RunError, match="of another model"),
    ):
        run(request)
    assert sorted((request.folder / "checkpoints").iterdir()) == before != []
