"""SIGKILL of Snakemake on one machine: what it started goes on, and is not started twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import be_cona, start
from snakemake_runs import ROOT, Workflow
from toy_cona import files_of

MODEL = Path("smoke") / "gpt3-1.3b-proxy"
POLICIES = ("cona", "fixed-best-gbs8")


def orphans(folder: Path) -> list[psutil.Process]:
    """Return the processes that work on runs below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(folder) and "run" in words and "--model" in words:
            found.append(process)
    return found


def drive(folder: Path, said: Path) -> subprocess.Popen[bytes]:
    """Start Snakemake on the smoke tier; what it says goes to a file."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--cores", "1", "--config", "tier=smoke"]
    with said.open("w") as file:
        return subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)


def wait_for(driver: subprocess.Popen[bytes], said: Path, is_there: Callable[[], bool]) -> None:
    """Wait for something that happens before a driver ends."""
    while not is_there():
        assert driver.poll() is None, said.read_text()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.fault("SIGKILL of snakemake")
def test_a_killed_snakemake_leaves_nothing_half_and_starts_nothing_twice(tmp_path: Path) -> None:
    folder, first, second = tmp_path.resolve(), tmp_path / "first.txt", tmp_path / "second.txt"
    driver = drive(folder, first)
    log = tmp_path / "results" / MODEL / POLICIES[0] / "seed0" / "metrics.jsonl"
    wait_for(driver, first, lambda: log.exists() and log.stat().st_size >= 2000)
    driver.kill()
    driver.wait()
    (orphan,) = orphans(folder)
    orphan.suspend()  # until the next one has found it
    assert Workflow(folder)("--unlock", tier="smoke").returncode == 0
    driver = drive(folder, second)
    wait_for(driver, second, lambda: f"waits for process {orphan.pid} on" in second.read_text())
    orphan.resume()
    assert driver.wait() == 0, second.read_text()
    assert not orphan.is_running()
    events = log.with_name("events.jsonl").read_text()
    assert events.count('"event":"finished"') == 1
    check_files(tmp_path)


def check_files(tmp_path: Path) -> None:
    """Compare with runs that no Snakemake has started."""
    words = [word for policy in POLICIES for word in ("--policy", policy)]
    options = ("--model", MODEL.name, "--tier", "smoke", "--out", str(tmp_path / "whole"))
    code, said = start(tmp_path / "whole.txt", be_cona, "run", *options, *words).ends()
    assert code == 0, said
    assert files_of(tmp_path / "results") == files_of(tmp_path / "whole")
