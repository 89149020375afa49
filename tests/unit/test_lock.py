"""One writer at a time: among threads of tests, real processes, killed ones and slow ones."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cona import lock as lock_module
from cona.errors import RunError, StorageError
from cona.interrupt import Interrupted
from cona.lock import Lock, TakenError, outwait, patience_s
from cona.owner import HEARTBEAT_S, STALE_S, Owner

INCREMENT = """
import sys, math
from pathlib import Path
from cona.lock import Lock
folder, times = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(times):
    with Lock(folder, wait_s=math.inf, beats=False):
        number = int((folder / "count").read_text())
        (folder / "draft").write_text(str(number + 1))
        (folder / "draft").replace(folder / "count")
"""


def increments(folder: Path, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", INCREMENT, str(folder), str(times)])


def count(folder: Path) -> int:
    return int((folder / "count").read_text())


def lock_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".lock*"))


def test_a_taken_lock_names_its_owner(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(TakenError) as refused:
        Lock(tmp_path).__enter__()
    assert f"process {os.getpid()} on " in str(refused.value)
    assert lock_files(tmp_path) == [".lock.1"]


def test_a_lock_is_free_again(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with Lock(tmp_path) as lock:
            assert lock.owner() is not None
            assert lock_files(tmp_path) == [f".lock.{number}"]
        assert lock.owner() is None


def test_an_error_inside_lets_the_lock_go(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), Lock(tmp_path):
        raise ValueError("inside")
    assert Lock(tmp_path).owner() is None


@pytest.mark.parametrize("inside", [None, ValueError("inside")])
def test_a_disk_that_refuses_the_release_is_named_unless_another_error_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Exception | None
) -> None:
    def refuse(path: Path, size: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "truncate", refuse)
    expected, said = (ValueError, "inside") if inside else (StorageError, r"cannot write \.lock\.1")
    with pytest.raises(expected, match=said), Lock(tmp_path):
        if inside:
            raise inside


def test_three_processes_lose_no_increment(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    workers = [increments(tmp_path, 40) for _ in range(3)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert count(tmp_path) == 120


@pytest.mark.fault("stale lock")
def test_killed_owners_are_succeeded_at_once(tmp_path: Path) -> None:
    """Killed anywhere, also while it holds the lock, a process stops nobody else."""
    (tmp_path / "count").write_text("0")
    rng = random.Random(5)
    for _ in range(4):
        before, victim = count(tmp_path), increments(tmp_path, 10**6)
        while count(tmp_path) == before:
            assert victim.poll() is None
            time.sleep(0.001)
        time.sleep(rng.random() / 50)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    before, started_s = count(tmp_path), time.monotonic()
    assert increments(tmp_path, 20).wait(timeout=60) == 0
    assert count(tmp_path) == before + 20
    assert time.monotonic() - started_s < STALE_S / 10


class SlowLock(Lock):
    """Looks at the folder, and comes back to act on it after others have acted."""

    def act_on(self, number: int) -> bool:
        draft = self.folder / ".lock-draft-slow"
        draft.write_text(Owner.this_process().to_json())
        try:
            return self._succeed(number, draft)
        finally:
            draft.unlink()


@pytest.mark.parametrize("num_since", [0, 1, 2, 5])
def test_an_old_look_at_the_folder_takes_nothing(tmp_path: Path, num_since: int) -> None:
    with Lock(tmp_path):
        pass
    slow = SlowLock(tmp_path)
    seen = slow._latest()  # free then
    for _ in range(num_since):
        with Lock(tmp_path):
            pass
    with Lock(tmp_path) as lock:
        before = lock_files(tmp_path)
        assert not slow.act_on(seen)
        assert lock_files(tmp_path) == before
        lock._look()
        lock.check()


class Crowd(RuleBasedStateMachine):
    """Any number of contenders on other hosts that take, let go, die, come late and hang."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name)
        self.held: dict[int, Lock] = {}
        self.dead: set[str] = set()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Owner, "is_alive", lambda owner, silent_s: owner.token not in self.dead)

    def teardown(self) -> None:
        self.patch.undo()
        self.scratch.cleanup()

    def token(self) -> str | None:
        found = Lock(self.folder).owner()
        return found[0].token if found else None

    def living(self) -> list[Lock]:
        return list(self.held.values())

    @rule(who=st.integers(0, 3))
    def take(self, who: int) -> None:
        if who in self.held:
            return
        lock, others = Lock(self.folder, beats=False), self.living()
        try:
            self.held[who] = lock.__enter__()
        except TakenError:
            assert others  # whatever happened before: only the living keep a lock
        else:
            assert not others

    @rule(who=st.integers(0, 3))
    def let_go(self, who: int) -> None:
        if who in self.held:
            self.held.pop(who).__exit__(None, None, None)
            assert Lock(self.folder).owner() is None

    @rule(who=st.integers(0, 3))
    def die(self, who: int) -> None:
        if who in self.held:
            self.dead.add(self.token() or "")
            del self.held[who]

    @rule(age=st.integers(1, 4))
    def come_late(self, age: int) -> None:
        slow = SlowLock(self.folder)
        if (seen := slow._latest() - age) >= 0:
            assert not slow.act_on(seen)

    @invariant()
    def nobody_is_pushed_out(self) -> None:
        assert len(self.living()) <= 1
        for lock in self.living():
            lock._look()
            lock.check()


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_an_owner_shows_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.02)
    with Lock(tmp_path):
        path = tmp_path / ".lock.1"
        os.utime(path, (0, 0))
        deadline_s = time.monotonic() + 20
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    letting_go_s = path.stat().st_mtime
    time.sleep(0.1)
    assert path.stat().st_mtime == letting_go_s


@pytest.mark.fault("suspended process")
def test_who_was_suspended_and_succeeded_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Owner, "is_alive", lambda owner, silent_s: False)
    with Lock(tmp_path) as suspended:
        suspended.check()
        with Lock(tmp_path) as successor:
            suspended._seen_s -= 3 * HEARTBEAT_S
            with pytest.raises(RunError, match="another process has taken over"):
                suspended.check()
            suspended.__exit__(None, None, None)
            successor._look()
            successor.check()  # what the other one let go was its own
        assert successor.owner() is None


def test_waiting_ends_when_the_owner_lets_go(tmp_path: Path) -> None:
    first = Lock(tmp_path).__enter__()
    threading.Timer(0.2, first.__exit__, (None, None, None)).start()
    with Lock(tmp_path, wait_s=math.inf):
        assert lock_files(tmp_path) == [".lock.2"]


def test_outwaiting_ends_when_the_owner_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "POLL_S", (0.002, 0.01))
    said: list[str] = []
    first = Lock(tmp_path).__enter__()
    owner, _ = first.owner() or (None, False)
    threading.Timer(0.2, first.__exit__, (None, None, None)).start()
    outwait(tmp_path, said.append)
    assert said == [f"waits for {owner}, which works on this"]


def test_outwaiting_says_now_and_then_how_long_it_has_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, owner = 0.0, Owner.this_process()
    said: list[str] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += 60

    monkeypatch.setattr(lock_module.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(lock_module.time, "sleep", sleep)
    monkeypatch.setattr(
        lock_module, "_living_owner", lambda folder: owner if now_s < 11 * 60 else None
    )
    outwait(tmp_path, said.append)
    waits = f"waits for {owner}, which works on this"
    assert said == [waits, f"{waits}, 5 min so far", f"{waits}, 10 min so far"]


def test_nobody_is_waited_for_who_is_not_there(tmp_path: Path) -> None:
    (tmp_path / ".lock.4").write_text(replace(Owner.this_process(), started_s=0.0).to_json())
    outwait(tmp_path, pytest.fail)
    outwait(tmp_path / "missing", pytest.fail)


def test_a_signal_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "POLL_S", (0.002, 0.01))
    with Lock(tmp_path), pytest.raises(Interrupted):
        outwait(tmp_path, lambda line: os.kill(os.getpid(), signal.SIGTERM))


def test_only_jobs_wait_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert patience_s() == 0
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert patience_s() > STALE_S


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock.3").write_text('{"pid": 1')
    with pytest.raises(RunError, match=r"\.lock\.3: damaged; delete it"):
        Lock(tmp_path).__enter__()
