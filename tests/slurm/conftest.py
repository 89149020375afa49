"""A SLURM of this machine's own: four nodes with four pretended GPUs, started for the tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from slurm_runs import ROOT, Cluster

COMMAND = str(ROOT / "slurm" / "local-cluster")


def local_cluster(verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, verb],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env={**os.environ, "CLUSTER_OWNER": str(os.getpid())},
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a running cluster; a machine on which none can run skips these tests, loudly."""
    with FileLock(Path(tempfile.gettempdir()) / "cona-local-cluster.lock"):
        is_ours = local_cluster("status").returncode != 0
        for verb in ("install", "start") if is_ours else ():
            if (done := local_cluster(verb)).returncode:
                reason = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
                pytest.skip(f"NOTHING IS SHOWN ABOUT SLURM: local-cluster {verb}: {reason}")
        yield Cluster()
        if is_ours:
            stopped = local_cluster("stop")
            assert stopped.returncode == 0, stopped.stdout
