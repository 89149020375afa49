"""Plays faults of the file system inside a process, at the n-th operation that it asks for.

An operation is what a kill or a full disk can fall on: opening a file to write, each write(2), and
every call that makes, renames, links, cuts, removes or flushes something. Patched are Python's own
ways to them, so the code under test is unchanged; what C++ libraries write is not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Write = Callable[[bytes], int]

GROWING = ("open", "write", "mkdir", "link")
"""Operations that take space."""
_CALLS = ("replace", "rename", "link", "unlink", "truncate", "mkdir", "rmdir", "utime")


class Faults:
    """Counts the operations on files below a folder; what happens at them is a subclass's.

    Args:
        folder: the only place where faults are played.
        at: number of the operation, from 1, at which they begin.
    """

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = str(folder), at, 0

    def happens(self, what: str) -> None:
        """Count an operation, and fail it if it is to fail."""
        self.count += 1
        if self.count >= self.at:
            self.strike(what)

    def strike(self, what: str) -> None:
        """Play the fault at an operation other than a write."""

    def write(self, content: bytes, write: Write) -> int:
        """Write to a file, or fail after half of it."""
        self.count += 1
        if self.count >= self.at:
            return self.strike_write(content, write)
        return write(content)

    def strike_write(self, content: bytes, write: Write) -> int:
        """Play the fault at a write."""
        self.strike("write")
        return write(content)

    def concerns(self, path: Any) -> bool:
        """Return whether a path is below the folder."""
        if not isinstance(path, (str, os.PathLike)):
            return False
        whole = os.path.abspath(os.fspath(path))  # noqa: PTH100 - links stay what they are
        return whole == self.folder or whole.startswith(f"{self.folder.rstrip('/')}/")

    def install(self) -> None:
        """Play the faults in this process from now on."""
        for name in _CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        fsync = os.fsync

        def watched_fsync(descriptor: int) -> None:
            self.happens("fsync")
            fsync(descriptor)

        os.fsync = watched_fsync  # type: ignore[assignment]
        builtins.open = io.open = self._opener(io.open)  # type: ignore[assignment]

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self.concerns(path):
                self.happens(name)
            return call(path, *args, **kwargs)

        return watched

    def _opener(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+") and self.concerns(path):
                self.happens("open")
                return _opened(self, path, mode, *args, **kwargs)
            return call(path, mode, *args, **kwargs)

        return watched


def _opened(
    faults: Faults, path: Any, mode: str, buffering: int = -1, encoding: Any = None, *rest: Any
) -> Any:
    raw = _Raw(faults, path, mode.replace("b", "").replace("t", ""))
    if buffering == 0:
        return raw
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", *rest)


class _Raw(io.FileIO):
    """A file whose writes and cuts are operations."""

    def __init__(self, faults: Faults, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self._faults = faults

    def write(self, content: Any) -> int:
        return self._faults.write(bytes(content), super().write)

    def truncate(self, size: int | None = None) -> int:
        self._faults.happens("truncate")
        return super().truncate(size)


class Killed(Faults):
    """SIGKILL before the operation; of a write, half is done."""

    def strike(self, what: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def strike_write(self, content: bytes, write: Write) -> int:
        write(content[: len(content) // 2])
        self.strike("write")
        return 0


class Full(Faults):
    """No space from the operation on; of the first write, half is done."""

    error = errno.ENOSPC
    fails = GROWING

    def strike(self, what: str) -> None:
        if what in self.fails:
            self.fail()

    def strike_write(self, content: bytes, write: Write) -> int:
        if self.count == self.at:
            write(content[: len(content) // 2])
        self.fail()

    def fail(self) -> NoReturn:
        raise OSError(self.error, os.strerror(self.error))


class ReadOnly(Full):
    """The file system is read-only from the operation on, as after an error of its disk."""

    error = errno.EROFS
    fails = (*GROWING, *_CALLS)


class Broken(Full):
    """Input and output fail from the operation on."""

    error = errno.EIO
    fails = (*GROWING, *_CALLS, "fsync")


class Slow(Faults):
    """Every flush to disk takes long."""

    seconds = 0.05

    def strike(self, what: str) -> None:
        if what == "fsync":
            time.sleep(self.seconds)


KINDS: dict[str, type[Faults]] = {
    "none": Faults,
    "killed": Killed,
    "full": Full,
    "read-only": ReadOnly,
    "broken": Broken,
    "slow": Slow,
}
