"""Who is a rank, what SLURM says about it, and what the user is told when one ends."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cona import cli, launch, rank
from cona.launch import RanksError, explain
from cona.specs import EngineSpec

BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NODELIST": "n[1-4]"}
TASK = BATCH | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget whatever started the tests."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if "SLURM" not in k})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 2),
        (TASK, 4),
        (BATCH, None),  # the batch script itself: it starts the ranks
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}, None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NODELIST": "a,b"}, 2),
    ],
)
def test_who_is_a_rank(variables: dict[str, str], size: int | None) -> None:
    os.environ.update(variables)
    assert rank.is_rank() == (size is not None)
    if size:
        assert rank.num_ranks() == size


def test_a_slurm_task_gets_the_variables_of_torch() -> None:
    os.environ.update(TASK | {"SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[03-04]"})
    rank.adopt_slurm()
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    assert found == {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu03"}


@given(job=st.integers(0, 2**31), step=st.integers(0, 30))
def test_every_step_of_a_job_has_its_own_free_port(job: int, step: int) -> None:
    ports = set()
    for one in (step, step + 1):
        os.environ.pop("MASTER_PORT", None)
        os.environ.update(TASK | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(one)})
        rank.adopt_slurm()
        ports.add(int(os.environ["MASTER_PORT"]))
    assert len(ports) == 2
    assert all(20_000 <= port < 40_000 for port in ports)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("n[03-05,9],login1", "n03"),
        ("n[7,9]", "n7"),
        ("a,b", "a"),
        ("rack[1-2]-n[3-4].site", "rack1-n3.site"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert rank.first_host(hosts) == first


# --- what the user is told ------------------------------------------------------------------------


def failure(exitcode: int, pid: int = 11) -> SimpleNamespace:
    return SimpleNamespace(exitcode=exitcode, pid=pid)


def test_a_killed_rank_is_the_cause_whatever_the_others_say(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text("RuntimeError: Connection closed by peer\n")
    end = explain({0: failure(1), 2: failure(-9, 42), 3: failure(-15)}, tmp_path)
    assert isinstance(end, RanksError)
    assert end.exit_code == 137
    assert str(end).startswith("rank 2 (process 42) was ended by SIGKILL, and the run with it; ")


def test_the_first_traceback_is_the_cause(tmp_path: Path) -> None:
    for number, (name, text) in enumerate([("rank3", "MemoryError: full"), ("rank0", "Lost: 3")]):
        path = tmp_path / f"{name}.txt"
        path.write_text(f"Traceback (most recent call last):\n  File x\n{text}\n  more\n")
        os.utime(path, ns=(number, number))
    end = explain({0: failure(1), 3: failure(7)}, tmp_path)
    assert isinstance(end, RanksError)
    assert end.exit_code == 7
    assert str(end).startswith("rank 3 failed: MemoryError: full; its traceback is in ")


def test_an_abort_after_a_traceback_is_not_the_cause(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text("MemoryError: full\n")
    end = explain({0: failure(-6)}, tmp_path)
    assert isinstance(end, RanksError)
    assert end.exit_code == 134
    assert str(end).startswith("rank 0 failed: MemoryError: full; its traceback is in ")


def test_what_rank_0_has_said_is_not_said_again(tmp_path: Path) -> None:
    for _ in range(2):
        end = explain({0: failure(2), 1: failure(1)}, tmp_path)
        assert isinstance(end, SystemExit)
        assert end.code == 2
        (tmp_path / "rank1.txt").write_text("RuntimeError: Connection closed by peer\n")


# --- the command ----------------------------------------------------------------------------------

COMMAND = ["run", "--model", "gpt3-1.3b-proxy", "--policy", "fixed-best-gbs8", "--tier", "smoke"]
MEASURED = [*COMMAND, "--clock", "measured", "--set", "budget.seconds=5"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, EngineSpec]]:
    """Replace the launcher by a note of what it was asked."""
    seen: list[tuple[int, EngineSpec]] = []
    monkeypatch.setattr(launch, "start", lambda num, engine, _: seen.append((num, engine)))
    return seen


def test_the_ranks_are_the_gpus_of_the_cluster(
    started: list[tuple[int, EngineSpec]], tmp_path: Path
) -> None:
    for options, size in ([], 4), (["--set", "cluster=local-cpu@2", "--nproc", "2"], 2):
        done = CliRunner().invoke(cli.main, [*MEASURED, *options, "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert started[-1] == (size, EngineSpec())
        assert done.stderr == (
            "techniques.zero_stage is set to 0: the nearest that the tier's engine, megatron, has\n"
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*COMMAND, "--nproc", "2"], "--nproc 2: the modelled clock needs no ranks"),
        ([*MEASURED, "--nproc", "3"], "nearest: --nproc 4, or --set cluster=local-cpu@3"),
        ([*COMMAND, "--policy", "cona-paper-engine=deepspeed"], "nearest: --clock measured"),
        ([*MEASURED, "--set", "techniques.zero_stage=3"], "techniques.zero_stage = 3"),
        ([*MEASURED, "--set", "engine.precision=fp16", "--set", "engine.kind=deepspeed"], "fp16"),
    ],
)
def test_bad_requests_start_no_rank(
    started: list[tuple[int, EngineSpec]], arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    failed = CliRunner().invoke(cli.main, [*arguments, "--out", str(tmp_path)])
    assert failed.exit_code == 2
    assert sentence in failed.stderr
    assert failed.stderr.count("Error: ") == 1
    assert not started
