"""What a user is told when a disk refuses to be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SmallDisk = Callable[[str], Path]
"""Mounts, or mounts again, a file system in memory with options such as `size=64k`."""


def check_refused(code: int, said: str, folder: Path, why: str) -> None:
    """Check that a command has ended with one sentence that says where, why and what to do."""
    assert code == 1, said
    assert "Traceback" not in said, said
    (sentence,) = (line for line in said.splitlines() if line.startswith("Error"))
    assert str(folder) in sentence
    assert why in sentence
    assert sentence.endswith("run the same command again: what is finished is kept")
