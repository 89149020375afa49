"""SIGKILL of Snakemake on one machine: what it started goes on, and is not started twice."""

from __future__ import annotations

import subprocess
import sys
import time
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


@pytest.mark.slow
@pytest.mark.fault("SIGKILL of snakemake")
def test_a_killed_snakemake_leaves_nothing_half_and_starts_nothing_twice(tmp_path: Path) -> None:
    workflow = Workflow(tmp_path.resolve())
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(workflow.folder), "--cores", "1", "--config", "tier=smoke"]
    with (tmp_path / "said.txt").open("w") as said:
        driver = subprocess.Popen(command, cwd=workflow.folder, stdout=said, stderr=said)
    log = tmp_path / "results" / MODEL / POLICIES[0] / "seed0" / "metrics.jsonl"
    while not log.exists() or log.stat().st_size < 2000:
        assert driver.poll() is None, (tmp_path / "said.txt").read_text()
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    assert orphans(workflow.folder), "the run has ended already: kill earlier"
    assert workflow("--unlock", tier="smoke").returncode == 0
    again = workflow("--cores", "1", tier="smoke")
    if again.returncode:  # the orphan still has the run
        log_file = next((tmp_path / "logs").rglob("train-*.log"))
        assert "another process works on this" in log_file.read_text()
        psutil.wait_procs(orphans(workflow.folder), timeout=300)
        again = workflow("--cores", "1", tier="smoke")
    assert again.returncode == 0, again.stdout
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
