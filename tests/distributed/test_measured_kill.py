"""`cona run --clock measured` with real processes: kills, signals, and the same losses after them.

The engine is a toy (`toy_ranks`) but in one slow test; the launcher, the ranks, the files and the
kills are real.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOY = Path(__file__).with_name("toy_ranks.py")
MODEL = "gpt3-1.3b-proxy"
NUM_RANKS = 2
SECONDS = 3.0
POLICY = "fixed-best-gbs8"
SWITCH_AT, SWITCH_TO = 28, "dp1-tp1-pp2-mbs4-gbs8"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return 400 short files of words."""
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0).choices([f"w{i}" for i in range(60)], k=80_000)
    for i in range(400):
        (folder / f"{i}.txt").write_text(" ".join(words[200 * i : 200 * (i + 1)]))
    return f"text:{folder}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> list[float]:
    """Return the losses of a run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole")
    finish(starter(path, corpus)())
    return losses(run_folder(path))


@pytest.fixture
def start(tmp_path: Path, corpus: str) -> Start:
    """Return a function that starts a measured run of the toy, whose files go to tmp_path."""
    return starter(tmp_path, corpus)


def starter(results: Path, corpus: str) -> Start:
    (results / "signals").mkdir()

    def command(*options: str, **variables: str) -> subprocess.Popen[str]:
        settings = {
            "budget.seconds": SECONDS,
            "cluster": f"local-cpu@{NUM_RANKS}",
            "snapshot_interval_samples": 64,
        }
        changes = [word for k, v in settings.items() for word in ("--set", f"{k}={v}")]
        toy = {
            "TOY_SIGNALS": str(results / "signals"),
            "TOY_SLEEP_S": "0.02",
            "TOY_SWITCH": f"{SWITCH_AT}:{SWITCH_TO}",
        }
        program = [sys.executable, str(TOY), "run", "--clock", "measured"]
        what = ["--model", MODEL, "--tier", "smoke", "--policy", POLICY, *changes, *options]
        where = ["--data", corpus, "--out", str(results)]
        return subprocess.Popen(
            [*program, "--nproc", str(NUM_RANKS), *what, *where],
            env=os.environ | toy | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return command


def run_folder(results: Path) -> Path:
    return results / "smoke" / MODEL / POLICY / "seed0"


def records(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file, if it is there."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def losses(run: Path) -> list[float]:
    return [r["loss"] for r in records(run / "metrics.jsonl") if r["kind"] == "step"]


def wait_until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        if process.poll() is not None:
            raise AssertionError(f"ended before that: {process.communicate()}")
        assert time.monotonic() < deadline, "did not get that far"
        time.sleep(0.01)


def process_of(tmp_path: Path, rank: int) -> int:
    """Return the id of a rank's latest process."""
    paths = (tmp_path / "signals").glob(f"rank{rank}.*")
    return int(max(paths, key=lambda p: p.stat().st_mtime_ns).suffix[1:])


def steps_on_record(run: Path) -> int:
    return sum(r["kind"] == "step" for r in records(run / "measured.jsonl"))


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return output


def does(tmp_path: Path, rank: int) -> list[str]:
    """Return what a rank's latest process said that it does."""
    paths = (tmp_path / "signals").glob(f"rank{rank}.*")
    return max(paths, key=lambda p: p.stat().st_mtime_ns).read_text().split()


def check_killed(process: subprocess.Popen[str], rank: int, pid: int) -> None:
    """Check that the launcher ends soon, with one sentence."""
    began_s = time.monotonic()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began_s < 60
    assert process.returncode == 128 + signal.SIGKILL
    assert errors.splitlines()[-1] == (
        f"Error: rank {rank} (process {pid}) was ended by SIGKILL, and the run with it; "
        "run the same command again: it continues from the last checkpoint"
    )
    assert len([line for line in errors.splitlines() if line.startswith("Error")]) == 1
    assert "Traceback" not in output + errors


@pytest.mark.parametrize(
    ("rank", "doing"),
    [(1, "switch"), *(pytest.param(rank, "step", marks=pytest.mark.slow) for rank in (0, 1))],
)
@pytest.mark.fault("SIGKILL of a rank")
def test_a_killed_rank_ends_the_run_and_the_same_command_continues_it(
    start: Start, tmp_path: Path, whole: list[float], rank: int, doing: str
) -> None:
    check_that_it_continues(start, tmp_path, whole, rank, doing)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "doing"), [(1, "switch"), (0, "step")])
@pytest.mark.fault("SIGKILL of a rank")
def test_so_it_is_with_the_real_engine(
    start: Start, tmp_path: Path, corpus: str, rank: int, doing: str
) -> None:
    (tmp_path / "whole").mkdir()
    real = {"TOY_ENGINE": "megatron"}
    longer = ("--set", "budget.seconds=8")
    finish(starter(tmp_path / "whole", corpus)(*longer, **real))
    whole = losses(run_folder(tmp_path / "whole"))
    check_that_it_continues(lambda: start(*longer, **real), tmp_path, whole, rank, doing)


def check_that_it_continues(
    start: Start, tmp_path: Path, whole: list[float], rank: int, doing: str
) -> None:
    """Kill a rank that is doing something, and continue the run to the losses of a whole one."""
    run = run_folder(tmp_path)
    process = start()
    wait_until(process, lambda: steps_on_record(run) >= 20 and does(tmp_path, rank)[-1] == doing)
    pid = process_of(tmp_path, rank)
    os.kill(pid, signal.SIGKILL)
    check_killed(process, rank, pid)
    assert does(tmp_path, rank)[-1] == doing
    before = records(run / "measured.jsonl")
    killed_at = sum(r["kind"] == "step" for r in before)
    output = finish(start())
    assert "finished" in output
    assert output.count("\n") == 1
    (repeated,) = (r for r in records(run / "events.jsonl") if r["event"] == "work repeated")
    kept = max(r["iteration"] for r in before if r["kind"] == "checkpoint")
    assert repeated["iterations"] == killed_at - kept
    ours = losses(run)
    common = min(len(ours), len(whole))
    assert common > killed_at
    assert ours[:common] == whole[:common]
    switches = [r for r in records(run / "measured.jsonl") if r["kind"] == "switch"]
    assert [(r["iteration"], r["to"]) for r in switches] == [(SWITCH_AT, SWITCH_TO)]


@pytest.mark.parametrize("signalled", ["the launcher", "all processes"])
@pytest.mark.fault("SIGTERM")
def test_sigterm_to_the_launcher_saves_and_stops(
    start: Start, tmp_path: Path, signalled: str
) -> None:
    run = run_folder(tmp_path)
    process = start()
    wait_until(process, lambda: steps_on_record(run) >= 10)
    for rank in range(NUM_RANKS) if signalled == "all processes" else ():
        os.kill(process_of(tmp_path, rank), signal.SIGTERM)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.endswith(
        "Error: stopped by a signal; the state is saved, run the same command again\n"
    )
    steps = steps_on_record(run)
    assert records(run / "measured.jsonl")[-1]["kind"] == "checkpoint"
    finish(start())
    events = records(run / "events.jsonl")
    assert "work repeated" not in [e["event"] for e in events]
    assert events[-1]["read"] == steps
    clock = json.loads((run / "result.json").read_text())["clock"]
    assert clock["kind"] == "measured"
    assert clock["hardware"]["num_ranks"] == NUM_RANKS
    assert clock["hardware"]["backend"] == "gloo"
    assert "(was finished: skipped)" in finish(start())


SCONTROL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
"""


@pytest.mark.parametrize("signalled", ["the launcher", "all processes"])
@pytest.mark.fault("time limit")
def test_the_signal_before_a_time_limit_saves_and_requeues(
    start: Start, tmp_path: Path, signalled: str
) -> None:
    """SLURM signals every process of a step: the launcher's ranks then get its signal twice."""
    run = run_folder(tmp_path)
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    job = {"SLURM_JOB_ID": "71", "SLURM_CLUSTER_NAME": "toy"}
    process = start(**job, PATH=f"{tmp_path}:{os.environ['PATH']}")
    wait_until(process, lambda: steps_on_record(run) >= 10)
    children = [process_of(tmp_path, rank) for rank in range(NUM_RANKS)]
    for pid in [process.pid, *(children if signalled == "all processes" else [])]:
        os.kill(pid, signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGUSR1
    assert errors.endswith(
        "Error: stopped by a signal; the state is saved, SLURM job 71 is requeued\n"
    )
    assert (tmp_path / "asked").read_text() == "requeue 71\n"
    assert records(run / "measured.jsonl")[-1]["kind"] == "checkpoint"
    finish(start())
    assert "work repeated" not in [e["event"] for e in records(run / "events.jsonl")]


def test_the_tasks_of_a_slurm_step_are_the_ranks(start: Start, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    step = {"SLURM_NTASKS": str(NUM_RANKS), "SLURM_NODELIST": "localhost"}
    step |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    tasks = [start(**step, SLURM_PROCID=str(i)) for i in range(NUM_RANKS)]
    outputs = [finish(task) for task in tasks]
    assert "finished" in outputs[0]
    assert outputs[1:] == [""] * (NUM_RANKS - 1)
    clock = json.loads((run_folder(tmp_path) / "result.json").read_text())["clock"]
    assert clock["hardware"]["num_ranks"] == NUM_RANKS


@pytest.mark.slow
@pytest.mark.fault("SIGKILL of torchrun")
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(start: Start, tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    process = start("--set", "budget.seconds=300")
    wait_until(process, lambda: steps_on_record(run) >= 5)
    ranks = [process_of(tmp_path, rank) for rank in range(NUM_RANKS)]
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "the ranks live on"
        time.sleep(0.1)
    assert records(run / "measured.jsonl")[-1]["kind"] == "checkpoint"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--set", "cluster=a100x4-2node"),
            "Error: 2 ranks, but cluster 'a100x4-2node' has 4 GPUs; nearest: --nproc 4, or "
            "--set cluster=local-cpu@2\n",
        ),
        (
            ("--set", "engine.precision=fp16"),
            "Error: engine.precision fp16 needs a GPU, and there is none; nearest: fp32\n",
        ),
        (
            ("--set", "techniques.zero_stage=2"),
            "Error: techniques.zero_stage = 2: the megatron engine has no such thing, and a "
            "measured run must run what it says; nearest: 0\n",
        ),
    ],
)
def test_bad_input_is_one_sentence_before_any_rank_starts(
    start: Start, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    process = start(*options)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert output == ""
    assert errors.endswith(sentence)
    assert errors.count("Error") == 1
    assert not list((tmp_path / "signals").iterdir())
