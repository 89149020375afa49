"""The files in slurm/: the profile, and what its scripts say without a SLURM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROFILE = yaml.safe_load((ROOT / "slurm" / "config.v8+.yaml").read_text())


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    return subprocess.run(
        [str(ROOT / "slurm" / name), *arguments],
        capture_output=True,
        text=True,
        env=outside | environment,
    )


def test_nothing_of_the_profile_is_overridden_by_the_one_for_all_runs() -> None:
    common = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    assert not set(PROFILE) & set(common)


def test_jobs_come_back_and_are_seen_without_accounting() -> None:
    assert PROFILE["executor"] == "slurm"
    assert PROFILE["slurm-requeue"] is True
    assert PROFILE["slurm-status-command"] == "squeue"
    assert PROFILE["retries"] > 0


def test_rules_leave_retries_to_the_profile() -> None:
    """In a rule they would multiply."""
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert "retries" not in rules


def test_launch_outside_an_allocation_is_the_command(tmp_path: Path) -> None:
    done = script("launch", "--nodes=2", "--ntasks-per-node=2", "--", "echo", "a b", "--c")
    assert (done.returncode, done.stdout) == (0, "a b --c\n")


def play(folder: Path, command: str, script: str) -> None:
    (folder / command).write_text(f"#!/bin/sh\n{script}\n")
    (folder / command).chmod(0o755)


@pytest.mark.parametrize(
    ("node_address", "interface"), [("127.0.0.1", "lo"), ("n1.cluster", "unset")]
)
def test_launch_meets_at_the_first_node(tmp_path: Path, node_address: str, interface: str) -> None:
    play(tmp_path, "squeue", '[ "$2" = --jobs=7 ] && echo "n[1-2]"')
    play(
        tmp_path,
        "scontrol",
        f'case "$*" in "show hostnames n[1-2]") printf "n1\\nn2\\n" ;; '
        f'"--oneliner show node n1") echo "NodeName=n1 NodeAddr={node_address} Version=1" ;; esac',
    )
    play(tmp_path, "srun", 'echo "$MASTER_ADDR ${GLOO_SOCKET_IFNAME-unset} $*"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = script("launch", "--nodes=2", "--", "cona", "run", SLURM_JOB_ID="7", PATH=path)
    wanted = f"{node_address} {interface} --kill-on-bad-exit=1 --nodes=2 cona run\n"
    assert done.stdout == wanted, done.stderr


@pytest.mark.parametrize("arguments", [[], ["--nodes=2"], ["--nodes=2", "--"], ["cona", "run"]])
def test_launch_without_a_command_is_one_sentence(arguments: list[str]) -> None:
    failed = script("launch", *arguments)
    assert failed.returncode == 2
    assert failed.stderr.startswith("Error: usage: slurm/launch")
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["stopp"], ["--help"]])
def test_local_cluster_names_its_verbs(arguments: list[str]) -> None:
    failed = script("local-cluster", *arguments)
    assert failed.returncode == 1
    assert "usage: slurm/local-cluster install|start|status|stop" in failed.stderr
