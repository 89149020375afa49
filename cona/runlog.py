"""Append-only JSON lines and files that appear whole or not at all.

A log that is opened again *verifies*: while a run is repeated from the start, every line that
already stands is compared with the one it would write, so that resuming can neither duplicate nor
silently change a line. Source: architecture.md, the house; docs/results-format.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from cona.errors import RunError
from cona.storage import write_whole, writing

Record = dict[str, Any]

ANEW = "delete the folder to run it again"
"""What helps against a damaged line."""


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is missing, NaN or infinite: JSON knows neither."""
    return value if value is not None and math.isfinite(value) else None


def dumps(record: Record) -> str:
    """Return one line of JSON in full precision; raises ValueError on NaN and infinity."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def read_records(path: Path, remedy: str = ANEW) -> list[Record]:
    """Return the complete records of a JSON-lines file; a torn last line is ignored.

    Args:
        path: the file; may be missing.
        remedy: what helps against a damaged line.

    Raises:
        RunError: a complete line is not a JSON object.
    """
    lines = enumerate(_complete_lines(path), start=1)
    return [_parse(line, path, number, remedy) for number, line in lines]


def _parse(line: bytes, path: Path, number: int, remedy: str = ANEW) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RunError(f"{path}, line {number}: not JSON; {remedy}") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}, line {number}: not a JSON object; {remedy}")
    return record


def _complete_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def _cut_torn_line(path: Path) -> list[bytes]:
    """Cut off what stands behind the last complete line, and return the lines."""
    lines = _complete_lines(path)
    if path.exists():
        os.truncate(path, sum(len(line) + 1 for line in lines))
    return lines


def append_record(path: Path, record: Record) -> None:
    """Append one record to a file of JSON lines that only this process writes, now and then.

    A torn last line, left by a killed process or a full disk, is cut off first.

    Raises:
        StorageError: the file cannot be written.
    """
    line = dumps(record).encode() + b"\n"
    with writing(path, len(line)):
        _cut_torn_line(path)
        with path.open("ab") as file:
            file.write(line)


class JsonLines:
    """An append-only JSON-lines file that verifies what already stands in it.

    Args:
        path: the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = 0
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._standing = _cut_torn_line(path)
            self._file = path.open("ab")

    @property
    def replaying(self) -> bool:
        """Whether lines that stand in the file are still to be repeated."""
        return self._cursor < len(self._standing)

    def append(self, record: Record) -> None:
        """Write one record, or check that it is the one that stands here already.

        Raises:
            RunError: another record stands here (other code, data or hardware made this file).
            StorageError: the file cannot be written.
        """
        line = dumps(record).encode()
        if self.replaying:
            if line != self._standing[self._cursor]:
                raise RunError(
                    f"{self.path}, line {self._cursor + 1}: differs from what this run would write;"
                    f" other code, data or hardware made it: delete {self.path.parent} to start"
                    " anew"
                )
            self._cursor += 1
            return
        with writing(self.path, len(line) + 1):
            self._file.write(line + b"\n")
            self._file.flush()

    def finish(self) -> None:
        """Close a complete file durably; raises RunError if more lines stand in it than were made.

        Only a caller that made every record calls this.
        """
        if self.replaying:
            raise RunError(
                f"{self.path}: holds {len(self._standing) - self._cursor} lines more than this run "
                f"makes; delete {self.path.parent} to start anew"
            )
        with writing(self.path):
            os.fsync(self._file.fileno())
            self.close()

    def close(self) -> None:
        """Close the file; what was appended stays."""
        self._file.close()


class SharedLines:
    """An append-only JSON-lines file that several processes may extend.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_bytes = 0

    def unread(self) -> list[Record]:
        """Return the complete records that were appended since the last call, by any process."""
        size, data = 0, b""
        # Opened before its size is asked for: a network file system may answer that from memory.
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(self._num_bytes)
            data = file.read()
        if size < self._num_bytes:
            raise RunError(f"{self.path}: became shorter; something deleted or replaced it")
        lines = data.split(b"\n")[:-1]
        self._num_bytes += sum(len(line) + 1 for line in lines)
        return [_parse(line, self.path, i) for i, line in enumerate(lines, start=1)]

    def append(self, record: Record) -> None:
        """Append one record; the caller holds the lock and has read all that stands there.

        A torn last line, left by a killed process, is cut off first.
        """
        line = dumps(record).encode() + b"\n"
        with writing(self.path, len(line)), self.path.open("ab") as file:
            file.truncate(self._num_bytes)
            file.write(line)
        self._num_bytes += len(line)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that it exists whole or not at all, even through a power cut."""
    write_whole(path, text.encode())


def write_json(path: Path, record: Record) -> None:
    """Write one JSON document atomically, indented for people."""
    write_atomic(path, json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Record:
    """Return a JSON document; raises RunError if it is missing or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: missing or damaged; run it again") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}: damaged; run it again")
    return record


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
