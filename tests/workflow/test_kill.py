"""A killed run continues to the same bytes, with the real engine in real processes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONA = str(Path(sys.executable).parent / "cona")
COMMAND = [CONA, "run", "--model", "gpt3-1.3b-proxy", "--tier", "smoke"]
SETTINGS = ["--set", "budget.iterations=120", "--set", "snapshot_interval_samples=256"]


def start(policy: str, results: Path) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *SETTINGS, "--policy", policy, "--out", str(results)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(policy: str, results: Path) -> bytes:
    process = start(policy, results)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    return metrics(policy, results).read_bytes()


def metrics(policy: str, results: Path) -> Path:
    return results / "smoke" / "gpt3-1.3b-proxy" / policy / "seed0" / "metrics.jsonl"


def num_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_at(policy: str, results: Path, size: int) -> None:
    """Kill the process as soon as its log holds more than ``size`` bytes."""
    process = start(policy, results)
    deadline = time.monotonic() + 300
    while num_bytes(metrics(policy, results)) <= size and process.poll() is None:
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def check_kills(tmp_path: Path, policy: str, num_kills: int) -> None:
    whole = finish(policy, tmp_path / "whole")
    rng = random.Random(num_kills)
    moments = sorted(rng.randrange(len(whole)) for _ in range(num_kills))
    for size in moments:
        kill_at(policy, tmp_path / "parts", size)
    left = num_bytes(metrics(policy, tmp_path / "parts"))
    assert moments[0] < left  # the kills came while it trained, not before
    assert finish(policy, tmp_path / "parts") == whole


@pytest.mark.fault("SIGKILL of a run")
def test_three_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, "cona", 3)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["cona", "greedy-oracle"])
@pytest.mark.fault("SIGKILL of a run")
def test_twenty_kills(tmp_path: Path, policy: str) -> None:
    check_kills(tmp_path, policy, 20)


@pytest.mark.fault("SIGTERM")
def test_sigterm_saves_and_exits_cleanly(tmp_path: Path) -> None:
    process = start("cona", tmp_path)
    while num_bytes(metrics("cona", tmp_path)) < 2000:
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in errors
    assert b"run the same command again" in errors
    trajectories = tmp_path / "smoke" / "gpt3-1.3b-proxy" / "_trajectories"
    last = max(int(p.stem) for p in trajectories.glob("*/snapshots/*.pt"))
    lines = metrics("cona", tmp_path).read_text().splitlines()
    assert sum('"kind":"step"' in line for line in lines) == last
