"""Orphans, their successors, and who works on which run; SLURM's queue is a list here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cona import jobs, slurm
from cona.cli import main
from cona.lock import Lock
from cona.owner import Owner


def job(number: int, **changes: str) -> slurm.Job:
    facts = {
        "id": str(number),
        "state": "RUNNING",
        "name": "old",
        "comment": "rule_train_cona_wildcards_gpt_0",
        "folder": str(Path.cwd()),
    }
    return slurm.Job(**{**facts, **changes})


@pytest.fixture(autouse=True)
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[slurm.Job]:
    """Return SLURM's queue; the test's working directory is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    queued: list[slurm.Job] = []
    monkeypatch.setattr(slurm, "queue", lambda: queued)
    jobs._queue.cache_clear()
    return queued


def led_by(run: str) -> Lock:
    """Play a Snakemake that works here."""
    folder = Path(".snakemake/leaders") / run
    folder.mkdir(parents=True)
    return Lock(folder)


def test_a_new_job_queues_behind_the_same_one(queue: list[slurm.Job]) -> None:
    queue += [
        job(1),
        job(2, comment="rule_train_cona_wildcards_gpt_1"),
        job(3, comment="rule_train_rampup_wildcards_gpt_0"),
        job(4, folder="/somewhere/else"),
        job(5, state="PENDING"),
    ]
    assert jobs.before("train_cona", ["gpt", "0"]) == ["1", "5"]
    assert jobs.before("train_cona", ["gpt", "2"]) == []


def test_a_job_is_not_behind_itself(
    queue: list[slurm.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.append(job(1))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert jobs.before("train_cona", ["gpt", "0"]) == []


def test_jobs_of_a_living_snakemake_are_no_orphans(queue: list[slurm.Job]) -> None:
    queue += [job(1, name="old"), job(2, name="new")]
    here = Path.cwd()
    assert [j.id for j in jobs.orphans(here, jobs.jobs_of(here) or [])] == ["1", "2"]
    with led_by("new"):
        assert [j.id for j in jobs.orphans(here, jobs.jobs_of(here) or [])] == ["1"]
    assert [j.id for j in jobs.orphans(here, jobs.jobs_of(here) or [])] == ["1", "2"]


@pytest.mark.parametrize("as_list", [True, False])
def test_a_leader_is_seen_until_it_ends(monkeypatch: pytest.MonkeyPatch, as_list: bool) -> None:
    ends: list[tuple[Callable[..., None], tuple[object, ...]]] = []
    monkeypatch.setattr(jobs.atexit, "register", lambda call, *args: ends.append((call, args)))
    Path("log").write_text("Building DAG of jobs...\nSLURM run ID: ab-12\nUsing shell\n")
    jobs.lead(["log"] if as_list else "log")
    with led_by("other"):
        assert jobs.led_runs(Path.cwd()) == {"ab-12", "other"}
    ((end, arguments),) = ends
    end(*arguments)
    assert jobs.led_runs(Path.cwd()) == set()


def test_a_local_snakemake_leads_no_jobs() -> None:
    Path("log").write_text("Building DAG of jobs...\nUsing shell\n")
    jobs.lead("log")
    assert not Path(".snakemake").exists()


def test_holds_tell_the_living_from_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [Path(f"results/quick/gpt/{policy}/seed0") for policy in ("cona", "free", "rampup")]
    for folder in folders:
        folder.mkdir(parents=True)
    dead = replace(Owner.this_process(), started_s=0.0)
    (folders[2] / ".lock.4").write_text(dead.to_json())
    with Lock(folders[0]):
        found = [(hold.folder, hold.is_alive) for hold in jobs.holds(Path("results"))]
    assert found == [(folders[0], True), (folders[2], False)]


def test_the_command_shows_and_cancels(
    queue: list[slurm.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(slurm, "cancel", cancelled.extend)
    queue += [job(1), job(2, name="new", state="PENDING")]
    with led_by("new"):
        shown = CliRunner().invoke(main, ["jobs"])
        assert shown.exit_code == 0
        assert shown.output.splitlines() == [
            "0 runs worked on",
            "SLURM job 1: running, train_cona gpt_0, orphan",
            "SLURM job 2: pending, train_cona gpt_0",
            "1 orphans: Snakemake, started again, waits for them; or --cancel",
        ]
        assert not cancelled
        assert CliRunner().invoke(main, ["jobs", "--cancel"]).exit_code == 0
    assert cancelled == ["1"]


def test_without_slurm_the_owners_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "queue", lambda: None)
    folders = [Path(f"results/quick/gpt/{policy}/seed0") for policy in ("cona", "rampup")]
    for folder in folders:
        folder.mkdir(parents=True)
    dead = replace(Owner.this_process(), started_s=0.0)
    (folders[1] / ".lock.4").write_text(dead.to_json())
    with Lock(folders[0]) as lock:
        shown = CliRunner().invoke(main, ["jobs"], env={"COLUMNS": "500"})
        facts = json.loads(CliRunner().invoke(main, ["jobs", "--json"]).stdout)
        owner, _ = lock.owner() or (dead, False)
    assert shown.exit_code == 0
    assert shown.output.splitlines() == [
        f"{folders[0]}: worked on by {owner}",
        f"{folders[1]}: left by {dead}, which is gone",
        "1 runs worked on",
        "no answer from SLURM here",
    ]
    assert facts["jobs"] is None
    assert [(h["pid"], h["alive"]) for h in facts["holds"]] == [
        (owner.pid, True),
        (dead.pid, False),
    ]


def test_without_slurm_nothing_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "queue", lambda: None)
    failed = CliRunner().invoke(main, ["jobs", "--cancel"])
    assert failed.exit_code == 2
    assert failed.output == (
        "Error: --cancel: no answer from SLURM's squeue; nearest: a login node\n"
    )


def test_json_says_the_same(queue: list[slurm.Job]) -> None:
    queue += [job(1), job(2, name="new", state="PENDING")]
    folder = Path("results/quick/gpt/cona/seed0")
    folder.mkdir(parents=True)
    with led_by("new"), Lock(folder):
        shown = json.loads(CliRunner().invoke(main, ["jobs", "--json"]).stdout)
    (hold,) = shown.pop("holds")
    assert (hold["folder"], hold["alive"]) == (str(folder), True)
    what = {"what": "train_cona gpt_0"}
    assert shown == {
        "jobs": [
            {"id": "1", "state": "RUNNING", **what, "orphan": True},
            {"id": "2", "state": "PENDING", **what, "orphan": False},
        ],
        "cancelled": False,
    }
