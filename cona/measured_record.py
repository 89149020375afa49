"""What happened on real ranks, line by line: measured.jsonl, which no later run can repeat.

The file is append-only but for one thing: after a crash, what happened since the last intact
checkpoint is cut off, because it happens again. Source: docs/results-format.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from cona.errors import RunError
from cona.runlog import Record, dumps, read_records
from cona.storage import delete, writing

NAME = "measured.jsonl"
CHECKPOINT = "checkpoint"

CHECKPOINTS = "checkpoints"
"""Folder in the run directory."""
CHECKPOINTS_KEPT = 2
"""Of a run that goes on: if the last one is damaged, the one before it takes its place."""

_REMEDY = (
    "cut off this line and all after it to continue from a checkpoint before it, or delete the "
    "folder to run it again"
)


class _Line(Record):
    """A line that stands; RunError where it lacks a key: damage may look like JSON.

    Args:
        content: of the line.
        where: the file and the line's number.
    """

    def __init__(self, content: Record, where: str) -> None:
        super().__init__(content)
        self._where = where

    def __missing__(self, key: str) -> NoReturn:
        raise RunError(f"{self._where}: has no {key}; {_REMEDY}")


class MeasuredRecord:
    """measured.jsonl and checkpoints/: lines that stand are read, then others are appended.

    Args:
        folder: the run directory.
        head: what all lines share (the run, the hardware); the first line.

    Raises:
        RunError: a line is damaged, or another run or other hardware made the file.
    """

    def __init__(self, folder: Path, head: Record) -> None:
        self.path = folder / NAME
        self._checkpoints = folder / CHECKPOINTS
        lines = enumerate(read_records(self.path, _REMEDY), start=1)
        self._lines: list[Record] = [_Line(line, f"{self.path}, line {i}") for i, line in lines]
        self._cursor = 1
        if not self._lines:
            delete(self.path)  # a torn first line
            self.append("head", **head)
        elif (found := self._lines[0]) != {"kind": "head", **head}:
            differs = next((key for key in head if found.get(key) != head[key]), "kind")
            raise RunError(
                f"{self.path}: made with {differs} {found.get(differs)}, but now it is "
                f"{head.get(differs)}; continue there, or delete {folder} to start anew"
            )

    # --- lines ------------------------------------------------------------------------------------

    def next(self, kind: str) -> Record | None:
        """Return the next line that stands, past checkpoints; None at the end of the file.

        Raises:
            RunError: it is of another kind: the code that made it decided otherwise.
        """
        while self._cursor < len(self._lines):
            line = self._lines[self._cursor]
            self._cursor += 1
            if line["kind"] == kind:
                return line
            if line["kind"] != CHECKPOINT:
                raise self.mismatch(kind)
        return None

    def mismatch(self, what: str) -> RunError:
        """Return the error that the line read last is not what this run would do."""
        return RunError(
            f"{self.path}, line {self._cursor}: this run would do something else here ({what}); "
            f"other code or data made it: delete {self.path.parent} to start anew"
        )

    def append(self, kind: str, **fields: Any) -> Record:
        """Write one line; a checkpoint's survives a power cut, and so does all before it.

        Raises:
            StorageError: it cannot be written; the next start cuts off what stands of it.
        """
        line = {"kind": kind, **fields}
        content = dumps(line).encode() + b"\n"
        with writing(self.path, len(content)), self.path.open("ab") as file:
            file.write(content)
            if kind == CHECKPOINT:
                file.flush()
                os.fsync(file.fileno())
        self._lines.append(line)
        self._cursor = len(self._lines)
        return line

    def seconds_of(self, kind: str) -> float:
        """Return the seconds of all lines of a kind together."""
        return sum((line["seconds"] for line in self._lines if line["kind"] == kind), 0.0)

    # --- checkpoints ------------------------------------------------------------------------------

    @property
    def is_kept(self) -> bool:
        """Whether the record ends with a checkpoint, so that nothing would happen again."""
        return bool(self._lines[-1]["kind"] == CHECKPOINT)

    @property
    def has_checkpoints(self) -> bool:
        """Whether any checkpoint is on record, even if its folder is not there."""
        return any(line["kind"] == CHECKPOINT for line in self._lines)

    def checkpoints(self) -> Iterator[Record]:
        """Yield the last of every folder that is there, latest first."""
        seen = set()
        for line in reversed(self._lines):
            if line["kind"] != CHECKPOINT or (iteration := line["iteration"]) in seen:
                continue
            seen.add(iteration)
            if self.checkpoint_folder(iteration).is_dir():
                yield line

    def checkpoint_folder(self, iteration: int) -> Path:
        """Return the folder of the checkpoint at an iteration."""
        return self._checkpoints / str(iteration)

    def new_checkpoint_folder(self, iteration: int) -> Path:
        """Return the folder for a checkpoint, clear of what a crash left there."""
        folder = self.checkpoint_folder(iteration)
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder):
            folder.parent.mkdir(exist_ok=True)
        return folder

    def add_checkpoint(self, iteration: int, samples: int, strategy: str, seconds: float) -> None:
        """Note that a checkpoint stands; all but the latest are deleted."""
        where = {"iteration": iteration, "samples": samples, "strategy": strategy}
        self.append(CHECKPOINT, **where, seconds=seconds)
        self._prune()

    def cut_after(self, checkpoint: Record | None) -> list[Record]:
        """Drop and return the lines after a checkpoint's; None: all but the head."""
        numbered = enumerate(self._lines, start=1)
        end = 1 if checkpoint is None else next(i for i, line in numbered if line is checkpoint)
        self._lines, lost = self._lines[:end], self._lines[end:]
        # A torn last line is cut off with them.
        with writing(self.path):
            os.truncate(self.path, sum(len(dumps(line).encode()) + 1 for line in self._lines))
        self._prune()
        return lost

    def _prune(self) -> None:
        latest = islice(self.checkpoints(), CHECKPOINTS_KEPT)
        kept = {self.checkpoint_folder(line["iteration"]).name for line in latest}
        for path in self._checkpoints.glob("*"):
            if path.name not in kept:
                with writing(path):
                    shutil.rmtree(path)


def keep_last_checkpoint(folder: Path) -> None:
    """Delete all checkpoints of a finished run but the last; what cannot be deleted stays.

    Args:
        folder: the run directory; without checkpoints nothing happens.
    """
    found = [path for path in (folder / CHECKPOINTS).glob("*") if path.name.isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name))[:-1]:
        shutil.rmtree(path, ignore_errors=True)
