"""What SLURM knows about jobs, asked through its own commands, where there are such."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from cona.errors import RunError

TIMEOUT_S = 30
"""ASSUMED: a controller that has not answered by then is not going to."""

OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""States in which no process of a job is left. Not NODE_FAIL: a node that the controller cannot
reach may go on writing."""

_FIELDS = {"id": "%i", "state": "%T", "name": "%j", "comment": "%k", "folder": "%Z"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job in SLURM's queue."""

    id: str
    state: str
    """SLURM's word, e.g. RUNNING."""
    name: str
    """Of Snakemake's jobs: what they share if the same Snakemake submitted them."""
    comment: str
    """What Snakemake says about it: `rule_<rule>_wildcards_<values>`."""
    folder: str
    """Working directory."""

    @property
    def what(self) -> str:
        """Rule and wildcards, for people."""
        return self.comment.removeprefix("rule_").replace("_wildcards_", " ")


def own_job() -> str | None:
    """Return the id of the job that this process belongs to."""
    return os.environ.get("SLURM_JOB_ID")


def cluster() -> str | None:
    """Return the name of the cluster whose jobs can be asked for here; job ids are its own."""
    if name := os.environ.get("SLURM_CLUSTER_NAME"):
        return name
    answer = _ask("scontrol", "show", "config")
    found = re.search(r"^ClusterName\s*=\s*(\S+)", answer.stdout, re.MULTILINE) if answer else None
    return found.group(1) if found else None


def queue() -> list[Job] | None:
    """Return the jobs of this user that wait or run; None: SLURM is not here or does not answer."""
    answer = _ask(
        "squeue", "--noheader", f"--user={os.getuid()}", "--format=" + "\t".join(_FIELDS.values())
    )
    if answer is None or answer.returncode:
        return None
    return [_job(line) for line in answer.stdout.splitlines()]


def is_over(job_id: str) -> bool | None:
    """Return whether no process of a job is left; None: SLURM does not answer.

    A job that SLURM has forgotten is over. One that waits was requeued: after a node failed its
    former processes may still write, so that is None too.
    """
    answer = _ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T")
    if answer is None:
        return None
    if answer.returncode:
        return True if "Invalid job id" in answer.stderr else None
    states = set(answer.stdout.split())
    if states <= OVER:
        return True
    return False if states <= {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"} else None


def requeue(job_id: str) -> None:
    """End a running job and put it back into the queue, under the same id.

    Raises:
        RunError: SLURM does not do that, e.g. because the job was not submitted with --requeue.
    """
    answer = _ask("scontrol", "requeue", job_id)
    if answer is None or answer.returncode:
        reason = " ".join(answer.stderr.split()) if answer else "no answer"
        raise RunError(f"SLURM job {job_id} was not requeued: {reason}; submit it with --requeue")


def cancel(job_ids: list[str]) -> None:
    """End jobs; what they run gets SIGTERM first, and saves.

    Raises:
        RunError: SLURM does not do that.
    """
    answer = _ask("scancel", *job_ids)
    if answer is None or answer.returncode:
        reason = " ".join(answer.stderr.split()) if answer else "no answer"
        raise RunError(f"SLURM jobs {', '.join(job_ids)} were not cancelled: {reason}")


def _job(line: str) -> Job:
    return Job(**dict(zip(_FIELDS, line.split("\t", len(_FIELDS) - 1), strict=True)))


def _ask(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run one of SLURM's commands; None if it is not installed or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
