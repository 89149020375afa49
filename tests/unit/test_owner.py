"""Is the owner of a lock still there? On this machine, on others, and in SLURM jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona import slurm
from cona.owner import SILENT_S, STALE_S, Owner, started_s

ages = st.floats(0, 10 * STALE_S)


def elsewhere(**changes: str | None) -> Owner:
    return replace(Owner.this_process(), machine="another", **changes)  # type: ignore[arg-type]


def test_facts_survive_the_file() -> None:
    owner = Owner.this_process()
    assert Owner.from_json(owner.to_json()) == owner
    assert owner.pid == os.getpid()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "3"])
def test_other_text_is_no_owner(text: str) -> None:
    with pytest.raises(ValueError):
        Owner.from_json(text)


@given(silent_s=ages)
@pytest.mark.fault("stale lock")
def test_here_only_the_process_counts(silent_s: float) -> None:
    owner = Owner.this_process()
    assert owner.is_alive(silent_s)
    assert not replace(owner, started_s=owner.started_s - 60).is_alive(silent_s)  # pid used again


@pytest.mark.fault("stale lock")
def test_a_dead_process_is_gone_even_before_it_is_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(Owner.this_process(), pid=child.pid, started_s=started_s(child.pid))
    assert owner.is_alive(0)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table
    assert not owner.is_alive(0)
    child.wait()
    assert not owner.is_alive(0)


@given(silent_s=ages)
def test_elsewhere_only_signs_of_life_count(silent_s: float) -> None:
    assert elsewhere().is_alive(silent_s) == (silent_s <= STALE_S)


@pytest.mark.parametrize(
    ("over", "cluster", "silent_s", "is_alive"),
    [
        (True, "here", SILENT_S + 1, False),
        (True, "here", SILENT_S - 1, True),  # a sign of life beats what SLURM believes
        (True, "there", SILENT_S + 1, True),  # another cluster's job of that number
        (False, "here", SILENT_S + 1, True),
        (False, "here", STALE_S + 1, False),
        (None, "here", SILENT_S + 1, True),
    ],
)
def test_slurm_knows_jobs_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    over: bool | None,
    cluster: str,
    silent_s: float,
    is_alive: bool,
) -> None:
    monkeypatch.setattr(slurm, "cluster", lambda: "here")
    monkeypatch.setattr(slurm, "is_over", lambda job: over if job == "7" else None)
    assert elsewhere(job="7", cluster=cluster).is_alive(silent_s) == is_alive


def test_an_owner_is_told_to_people() -> None:
    text = str(replace(Owner.this_process(), host="n1", pid=12, job="7", since="now"))
    assert text == "process 12 on n1 (SLURM job 7) since now"
