"""Writing to file systems that may be full, read-only or slow.

A file appears whole or not at all, and whatever the file system refuses becomes one sentence that
says where, what is missing and what to do. Source: architecture.md, Style 5.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cona.errors import StorageError
from cona.owner import this_machine

AGAIN = "run the same command again: what is finished is kept"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHT = (errno.EROFS, errno.EACCES, errno.EPERM)
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@contextmanager
def writing(path: Path, num_bytes: int = 0, instead: str = "") -> Iterator[None]:
    """Turn what the file system refuses into one sentence for the user.

    Args:
        path: the file or folder that is written.
        num_bytes: what it takes, at least; 0: nobody knows.
        instead: what else a user could do, e.g. `set CONA_CACHE_DIR`.

    Raises:
        StorageError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise refusal(error, path, num_bytes, instead) from error


def refusal(error: OSError, path: Path, num_bytes: int = 0, instead: str = "") -> StorageError:
    """Return the sentence about a path that could not be written; arguments as of `writing`."""
    folder, reason = path.parent, error.strerror or str(error)
    what, remedy = f"cannot write {path.name}: {reason}", "mend that"
    if error.errno in _NO_SPACE:
        what, _, remedy = _shortage(folder, path.name, num_bytes).partition("; ")
    elif error.errno in _NO_RIGHT:
        remedy = "make it writable or choose another folder"
    other = f", or {instead}" if instead else ""
    return StorageError(f"{folder}: {what}; {remedy}{other}, and {AGAIN}")


def _shortage(folder: Path, name: str, num_bytes: int) -> str:
    free = free_bytes(folder)
    if not num_bytes:
        return f"no space left for {name}, {amount(free)} free; free some there"
    known = f"no space left for {name}: {amount(num_bytes)} or more to write, {amount(free)} free"
    if num_bytes <= free:
        return f"{known}; free more there, or raise the quota"
    return f"{known}; free {amount(num_bytes - free)} or more there"


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free for this user where a folder is, or is to be."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    return shutil.disk_usage(there).free


def amount(num_bytes: int) -> str:
    """Return a number of bytes for people, e.g. ``1.5 MB``."""
    size, units = float(num_bytes), iter(_UNITS)
    unit = next(units)
    while size >= 1000 and (larger := next(units, None)):
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == _UNITS[0] else f"{size:.1f} {unit}"


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file so that it exists whole or not at all, even through a power cut.

    Args:
        path: the file; its folder is created.
        parts: its content, one after the other.

    Raises:
        StorageError: it cannot be written; what stood there still does.
    """
    with writing(path, sum(len(part) for part in parts)):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, *parts)


def put(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file whole or not at all into a folder that is there; raises OSError."""
    draft = draft_of(path)
    try:
        write_synced(draft, *parts)
        draft.replace(path)
    except OSError:
        discard(draft)
        raise


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file and wait until it is on disk; arguments as of `write_whole`."""
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def delete(path: Path) -> None:
    """Delete a file, if there is one. Raises StorageError."""
    with writing(path):
        path.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Return where this process writes what it will then rename to a path: nothing stands there.

    What killed processes of this machine left in the folder is removed: it may fill a disk.
    """
    for left in path.parent.glob(f".*.{_machine()}.*"):
        pid = left.suffix.removeprefix(".")
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            discard(left)
    draft = path.with_name(f".{path.name}.{_machine()}.{os.getpid()}")
    discard(draft)  # of a process that had this number before
    return draft


def discard(draft: Path) -> None:
    """Delete a file or folder that is not complete, as far as the file system lets us."""
    shutil.rmtree(draft, ignore_errors=True)
    with suppress(OSError):
        draft.unlink()


@functools.cache
def _machine() -> str:
    """Return a short name of the machine within which a process id means something."""
    return hashlib.sha256(this_machine().encode()).hexdigest()[:8]
