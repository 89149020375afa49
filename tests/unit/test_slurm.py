"""Asking SLURM, played by small scripts: what it answers, and that it is not there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cona import slurm
from cona.errors import RunError
from cona.interrupt import Interrupted, requeued

COMMANDS = ("squeue", "scontrol", "scancel")


@pytest.fixture(autouse=True)
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder before all others on the path; without SLURM unless a test plays it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def play(folder: Path, command: str, script: str) -> None:
    path = folder / command
    path.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().replace(f"{folder}/", "").splitlines()


def test_without_slurm_nothing_is_known() -> None:
    assert slurm.queue() is None
    assert slurm.is_over("1") is None
    assert slurm.cluster() is None
    assert slurm.own_job() is None


def test_queue(bin_folder: Path) -> None:
    line = r"12\tRUNNING\tuuid\trule_train_cona_wildcards_m_0\t/a/b\tc"
    play(bin_folder, "squeue", f"printf '{line}\\n'")
    (job,) = slurm.queue() or []
    assert (job.id, job.state, job.name, job.folder) == ("12", "RUNNING", "uuid", "/a/b\tc")
    assert job.what == "train_cona m_0"


def test_a_controller_that_is_down_is_no_answer(bin_folder: Path) -> None:
    play(bin_folder, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert slurm.queue() is None
    assert slurm.is_over("1") is None


def test_a_controller_that_hangs_is_no_answer(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    play(bin_folder, "squeue", "exec /bin/sleep 60")
    assert slurm.is_over("1") is None


@pytest.mark.parametrize(
    ("states", "is_over"),
    [
        ("COMPLETED", True),
        ("CANCELLED", True),
        ("COMPLETED\nFAILED", True),  # of an array
        ("COMPLETED\nRUNNING", None),
        ("RUNNING", False),
        ("COMPLETING", False),
        ("PENDING", None),
        ("NODE_FAIL", None),
        ("", True),
    ],
)
def test_states(bin_folder: Path, states: str, is_over: bool | None) -> None:
    play(bin_folder, "squeue", f"printf '{states}\\n'")
    assert slurm.is_over("1") is is_over


def test_a_forgotten_job_is_over(bin_folder: Path) -> None:
    play(bin_folder, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.is_over("1") is True


def test_cluster_name(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(bin_folder, "scontrol", "printf 'BatchStartTimeout = 10\\nClusterName   = big\\n'")
    assert slurm.cluster() == "big"
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "mine")
    assert slurm.cluster() == "mine"


def test_the_time_limit_requeues_the_job(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(bin_folder, "scontrol", "")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    stopped = requeued(Interrupted(signal.SIGUSR1))
    assert str(stopped).endswith("SLURM job 7 is requeued")
    assert stopped.exit_code == 128 + signal.SIGUSR1
    assert calls(bin_folder) == ["scontrol requeue 7"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_other_signals_do_not(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "run the same command again" in str(requeued(Interrupted(number)))
    assert not (bin_folder / "calls").exists()


def test_without_a_job_nothing_is_requeued() -> None:
    assert "run the same command again" in str(requeued(Interrupted(signal.SIGUSR1)))


def test_a_refusal_says_why(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(bin_folder, "scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(RunError, match="7 was not requeued: Requested .* with --requeue"):
        requeued(Interrupted(signal.SIGUSR1))
    with pytest.raises(RunError, match="jobs 1, 2 were not cancelled"):
        slurm.cancel(["1", "2"])
