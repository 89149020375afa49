"""What a cluster does to a run, and that the run ends as if nothing had happened.

The tests take minutes: they train for long enough to be hit, under SLURM's own timers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from slurm_runs import ROOT, Cluster, wait_until

pytestmark = pytest.mark.slow

MODEL, POLICY = "gpt3-1.3b-proxy", "fixed-best-gbs8"
RULE = "train_policies"
RUN = Path("long") / MODEL / POLICY / "seed0"


def write_tier(folder: Path, num_iterations: int, **jobs: int) -> None:
    """Write long.yaml: the smoke tier with one policy, for longer."""
    tier = yaml.safe_load((ROOT / "config" / "tiers" / "smoke.yaml").read_text())
    tier |= {"name": "long", "policies": [POLICY], "budget": {"iterations": num_iterations}}
    tier |= {"learning_rate": {"decay_samples": 8 * num_iterations}, "jobs": jobs}
    (folder / "long.yaml").write_text(yaml.safe_dump(tier))


@dataclass
class Experiment:
    """A run under SLURM in a folder of its own."""

    cluster: Cluster
    folder: Path
    drivers: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake on it."""
        self.drivers.append(self.cluster.snakemake(self.folder, *arguments, tier="long.yaml"))
        return self.drivers[-1]

    def num_lines(self) -> int:
        """Return the lines of the run's log."""
        path = self.folder / "results" / RUN / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def job_in_progress(self) -> str:
        """Return the running job once it has got further than it was."""
        before = self.num_lines()
        wait_until(lambda: self.num_lines() > before + 30)
        job = self.cluster.running(self.folder, RULE)
        assert job is not None, "the run is over: give it more iterations"
        return job

    def events(self) -> list[str]:
        """Return what happened to the run, in words."""
        lines = (self.folder / "results" / RUN / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def submissions(self) -> list[str]:
        """Return the ids of the run's jobs."""
        jobs = self.cluster.jobs(self.folder, "%i|%k")
        return [number for number, comment in jobs if comment.startswith(f"rule_{RULE}")]

    def check_result(self) -> None:
        """Compare with a run in one go on this machine."""
        options = ("--model", MODEL, "--policy", POLICY, "--tier", "long.yaml", "--out", "whole")
        self.cluster.cona(self.folder, "run", *options)
        for name in ("result.json", "metrics.jsonl"):
            whole = (self.folder / "whole" / RUN / name).read_bytes()
            assert (self.folder / "results" / RUN / name).read_bytes() == whole


@pytest.fixture
def experiment(cluster: Cluster, tmp_path: Path) -> Iterator[Experiment]:
    experiment = Experiment(cluster, tmp_path.resolve())
    yield experiment
    for driver in experiment.drivers:
        driver.kill()


def output(experiment: Experiment) -> str:
    return (experiment.folder / "snakemake.txt").read_text()


@pytest.mark.fault("time limit")
@pytest.mark.fault("preemption")
@pytest.mark.fault("scancel")
@pytest.mark.fault("SIGKILL of a run")
def test_faults_one_after_the_other(experiment: Experiment) -> None:
    """The signal before a time limit, a preemption, scancel, SIGKILL of the run itself."""
    cluster, folder = experiment.cluster, experiment.folder
    write_tier(folder, 2500)
    driver = experiment.start()
    cluster.do("scancel", "--signal=USR1", experiment.job_in_progress())
    first = experiment.job_in_progress()
    cluster.do(
        "sbatch",
        "--partition=urgent",
        "--nodes=4",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 5",
    )
    assert experiment.job_in_progress() == first  # requeued twice, under the same id
    cluster.do("scancel", first)
    second = experiment.job_in_progress()
    assert second != first  # cancelled is over: Snakemake submits a new one
    (owner,) = (folder / "results" / RUN).glob(".lock.*")
    os.kill(json.loads(owner.read_text())["pid"], signal.SIGKILL)
    assert driver.wait(timeout=900) == 0, output(experiment)
    assert experiment.events().count("resumed") == 4
    assert len(experiment.submissions()) == 3
    experiment.check_result()


@pytest.mark.fault("SIGKILL of snakemake")
def test_a_killed_snakemake_duplicates_nothing(experiment: Experiment) -> None:
    cluster, folder = experiment.cluster, experiment.folder
    write_tier(folder, 1200)
    experiment.start()
    orphan = experiment.job_in_progress()
    experiment.drivers[0].kill()
    experiment.drivers[0].wait()
    assert f"SLURM job {orphan}: running, {RULE} {MODEL}_0, orphan" in cluster.cona(folder, "jobs")
    assert experiment.start("--unlock").wait(timeout=120) == 0
    assert experiment.start().wait(timeout=900) == 0, output(experiment)
    assert experiment.events() == ["started", "finished"]  # by the orphan, undisturbed
    assert len(experiment.submissions()) == 2  # the second one found it finished
    assert "no orphans" in cluster.cona(folder, "jobs")
    experiment.check_result()


@pytest.mark.fault("SIGKILL of snakemake")
@pytest.mark.fault("scancel")
def test_orphans_can_be_cancelled(experiment: Experiment) -> None:
    cluster, folder = experiment.cluster, experiment.folder
    write_tier(folder, 10_000)
    experiment.start()
    orphan = experiment.job_in_progress()
    experiment.drivers[0].kill()
    experiment.drivers[0].wait()
    assert "1 orphans cancelled" in cluster.cona(folder, "jobs", "--cancel")
    wait_until(lambda: "no orphans" in cluster.cona(folder, "jobs"), 60)
    assert experiment.events()[-1] == "ended early"  # it saved
    assert dict(cluster.jobs(folder, "%i|%T"))[orphan] == "CANCELLED"


@pytest.mark.fault("scancel")
def test_interrupting_snakemake_cancels_its_jobs(experiment: Experiment) -> None:
    cluster, folder = experiment.cluster, experiment.folder
    write_tier(folder, 10_000)
    driver = experiment.start()
    job = experiment.job_in_progress()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=120) != 0
    wait_until(lambda: dict(cluster.jobs(folder, "%i|%T"))[job] == "CANCELLED", 60)
    wait_until(lambda: experiment.events()[-1] == "ended early", 60)


@pytest.mark.fault("time limit")
def test_a_time_limit_is_no_end(experiment: Experiment) -> None:
    """Longer than its time limit, a run saves before it and comes back by itself."""
    write_tier(experiment.folder, 8000, runtime_min=3, save_s=60)  # 2,500 took 88 s
    driver = experiment.start()
    assert driver.wait(timeout=3000) == 0, output(experiment)
    assert "resumed" in experiment.events(), "the run was over before its time limit"
    assert len(experiment.submissions()) == 1
    experiment.check_result()


@pytest.mark.fault("SIGKILL of slurmd")
def test_a_killed_slurmd_ends_no_run(experiment: Experiment) -> None:
    """The job goes on without the daemon of its node, which finds it again when it is back."""
    cluster, folder = experiment.cluster, experiment.folder
    write_tier(folder, 1200)
    driver = experiment.start()
    job = experiment.job_in_progress()
    node = dict(cluster.jobs(folder, "%i|%N"))[job]
    cluster.restart_node(node, after_s=10)
    assert driver.wait(timeout=900) == 0, output(experiment)
    assert experiment.events() == ["started", "finished"]
    assert len(experiment.submissions()) == 1
    experiment.check_result()
