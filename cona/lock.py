"""The exclusive right to write into a folder, on file systems that several hosts share.

flock(2) does not reach across hosts everywhere; creating a hard link does. A lock is a series of
numbered files: whoever creates the next number owns it, an emptied file says that its owner let
go, and an owner that is gone is succeeded, never removed. So nothing that one process found can
make it destroy what another one has taken since.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cona import slurm
from cona.errors import RunError
from cona.interrupt import stop_signals
from cona.owner import HEARTBEAT_S, STALE_S, Owner
from cona.storage import writing

PREFIX = ".lock."
"""Names of the numbered files."""

POLL_S = (0.002, 2.0)
"""Shortest and longest pause between two attempts to get a lock that is taken."""

REPORT_S = 300.0
"""Seconds between two words of a process that waits for another one."""


class TakenError(RunError):
    """Another process owns the lock.

    Args:
        folder: what it is a lock of.
        owner: who has it.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        super().__init__(
            f"{folder}: another process works on this: {owner}; wait for it (`cona run --wait` "
            "does), or end it and run the same command again"
        )
        self.owner = owner


def patience_s() -> float:
    """Return how long to wait for a run that is taken, in seconds.

    A job that SLURM has put on another host must outwait the silence of the process that it
    replaces; a person is told at once.
    """
    return STALE_S + 2 * HEARTBEAT_S if slurm.own_job() else 0.0


def outwait(folder: Path, say: Callable[[str], None]) -> None:
    """Return as soon as nobody works on a folder: its owner has let go, or is gone.

    Args:
        folder: need not exist.
        say: gets a line at once if there is an owner, and one now and then.

    Raises:
        Interrupted: a signal arrived.
    """
    begun_s, due_s = time.monotonic(), 0.0
    with stop_signals() as stop:
        while owner := _living_owner(folder):
            waited_s = time.monotonic() - begun_s
            if waited_s >= due_s:
                so_far = f", {waited_s / 60:.0f} min so far" if due_s else ""
                say(f"waits for {owner}, which works on this{so_far}")
                due_s += REPORT_S
            time.sleep(POLL_S[1])
            stop.check()


def _living_owner(folder: Path) -> Owner | None:
    found = Lock(folder).owner() if folder.is_dir() else None
    return found[0] if found and found[1] else None


class Lock:
    """The exclusive right to write into a folder, with the owner's facts and signs of life.

    Args:
        folder: what it is a lock of; must exist when the lock is taken.
        wait_s: how long to wait for another owner; infinity: as long as it takes.
        beats: show signs of life while the lock is held; without, it must be held shortly.
    """

    def __init__(self, folder: Path, *, wait_s: float = 0.0, beats: bool = True) -> None:
        self.folder, self._wait_s, self._beats = folder, wait_s, beats
        self._number: int | None = None
        self._seen_s = 0.0
        self._released = threading.Event()

    def __enter__(self) -> Lock:
        """Take the lock.

        Raises:
            TakenError: another process keeps it.
            StorageError: the folder cannot be written.
        """
        deadline_s, pause_s = time.monotonic() + self._wait_s, POLL_S[0]
        while (owner := self._try()) is not None:
            if time.monotonic() >= deadline_s:
                raise TakenError(self.folder, owner)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S[1])
        self._seen_s = time.time()
        if self._beats:
            self._released.clear()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the lock go. Raises StorageError: nothing had failed before, and this does."""
        self._released.set()
        number, self._number = self._number, None
        if number is not None:
            # Not found: another process has taken over. After an error: a disk that refuses to be
            # written must not hide it, and the end of this process lets go as well.
            hidden = FileNotFoundError if kind is None else OSError
            with writing(self._path(number)), suppress(hidden):
                os.truncate(self._path(number), 0)

    def check(self) -> None:
        """Raise RunError if another process has taken over, believing that this one is gone.

        That happens to a process that was suspended for long.
        """
        if time.time() - self._seen_s > 2 * HEARTBEAT_S:  # suspended, the other thread too
            with writing(self.folder / ".lock"):
                self._look()
        if self._number is None:
            raise RunError(f"{self.folder}: another process has taken over; this one stops")

    def owner(self) -> tuple[Owner, bool] | None:
        """Return who owns the lock, and whether that process is there; None: nobody."""
        number = self._latest()
        if (found := self._read(number)) is None:
            return None
        owner, seen_s = found
        return owner, owner.is_alive(time.time() - seen_s)

    def _try(self) -> Owner | None:
        """Take the lock, or return who has it."""
        mine = Owner.this_process()
        draft = self.folder / f".lock-draft-{mine.token}"
        with writing(self.folder / ".lock"):
            return self._take(draft, mine.to_json())

    def _take(self, draft: Path, facts: str) -> Owner | None:
        try:
            draft.write_text(facts, encoding="utf-8")
            now_s = draft.stat().st_mtime  # of the file system's clock, as are the signs of life
            while True:
                number = self._latest()
                if found := self._read(number):
                    owner, seen_s = found
                    if owner.is_alive(now_s - seen_s):
                        return owner
                if self._succeed(number, draft):
                    return None
        finally:
            draft.unlink(missing_ok=True)

    def _succeed(self, number: int, draft: Path) -> bool:
        """Become the owner after the one with a number, unless somebody else already has."""
        try:
            os.link(draft, self._path(number + 1))
        except FileExistsError:
            return False
        numbers = self._numbers()
        if number + 1 < max(numbers):  # the look at the folder was an old one: this one is past
            self._path(number + 1).unlink(missing_ok=True)
            return False
        for old in numbers:
            if old <= number:
                self._path(old).unlink(missing_ok=True)
        self._number = number + 1
        return True

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            with suppress(OSError):  # a file system that fails now may be there at the next beat
                self._look()

    def _look(self) -> None:
        """Show a sign of life, and see whether the lock is still ours."""
        number = self._number
        if number is None:
            return
        with suppress(FileNotFoundError):  # a successor has removed it
            os.utime(self._path(number))
        if self._latest() == number:
            self._seen_s = time.time()
        else:
            self._number = None

    def _latest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        names = os.listdir(self.folder)  # noqa: PTH208 - half the time, before every iteration
        ours = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
        return [int(number) for number in ours if number.isdecimal()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{PREFIX}{number}"

    def _read(self, number: int) -> tuple[Owner, float] | None:
        """Return who took a number and the last sign of life; None: let go, or never taken."""
        path = self._path(number)
        try:
            text = path.read_text(encoding="utf-8")
            return (Owner.from_json(text), path.stat().st_mtime) if text else None
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(f"{path}: damaged; delete it if nobody works on this") from error
