"""Which process is it, and does it still run? Across hosts, pid namespaces and SLURM jobs."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from cona import slurm

HEARTBEAT_S = 20.0
"""Seconds between two signs of life."""
SILENT_S = 3 * HEARTBEAT_S
"""Silence after which SLURM is asked about an owner elsewhere."""
STALE_S = 300.0
"""ASSUMED: an owner elsewhere without a sign of life for so long is gone. Network file systems may
show a sign a minute late, and a process may hang in input or output."""


@functools.cache
def _facts(pid: int) -> dict[str, Any]:
    job = slurm.own_job()
    return {
        "host": platform.node(),
        "machine": this_machine(),
        "pid": pid,
        "started_s": started_s(pid),
        "job": job,
        "cluster": slurm.cluster() if job else None,
    }


def started_s(pid: int) -> float:
    """Return when a process of this machine started, in seconds since a moment that never moves.

    On Linux since the machine's own start: the wall clock may be set while the process lives.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return psutil.Process(pid).create_time()
    # Field 22 of proc(5), counted after the name in parentheses, which may hold anything.
    return int(words.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


@functools.cache
def this_machine() -> str:
    """Return what tells this machine's process ids from those of any other machine or start."""
    facts = [platform.node()]
    boot, pids = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists() and pids.is_symlink():
        facts += [boot.read_text(encoding="ascii").strip(), str(pids.readlink())]
    return " ".join(facts)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that holds a lock."""

    host: str
    """Name of the machine, for people."""
    machine: str
    """Within which the process id means something."""
    pid: int
    started_s: float
    """When the process started, as `started_s` says: process ids are used again."""
    job: str | None
    """Its SLURM job, if any."""
    cluster: str | None
    """Name of the cluster that gave it the job."""
    since: str
    """When it took the lock."""
    token: str
    """Tells two owners apart, whatever else they share."""

    @classmethod
    def this_process(cls) -> Owner:
        """Return the calling process as an owner from now on."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(**_facts(os.getpid()), since=now, token=uuid.uuid4().hex)

    def __str__(self) -> str:
        job = f" (SLURM job {self.job})" if self.job else ""
        return f"process {self.pid} on {self.host}{job} since {self.since}"

    def to_json(self) -> str:
        """Return the facts as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Owner:
        """Return the owner that wrote a line; raises ValueError if it is not one."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(text) from error

    def is_alive(self, silent_s: float) -> bool:
        """Return whether the process may still write.

        Args:
            silent_s: seconds since its last sign of life.
        """
        if self.machine == this_machine():
            return self._runs_here()
        if silent_s <= SILENT_S:
            return True
        return silent_s <= STALE_S and not self._job_is_over()

    def _job_is_over(self) -> bool:
        if not (self.job and self.cluster and self.cluster == slurm.cluster()):
            return False
        return slurm.is_over(self.job) is True

    def _runs_here(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(started_s(self.pid) - self.started_s) < 2
        except psutil.NoSuchProcess:
            return False
