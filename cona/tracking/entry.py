"""What MLflow is told of one run, in its own words but without loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cona.analysis.flat import Point

Status = Literal["FINISHED", "FAILED", "KILLED", "RUNNING"]
"""MLflow's words for the state of a run."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of an experiment in MLflow."""

    name: str
    """Shown in lists."""
    key: str
    """Finds the entry again: its tag `run_key`."""
    content: str
    """Tells it from what it was at another import."""
    status: Status
    start_ms: int
    """Milliseconds since 1970; the points' train clock is added to it."""
    end_ms: int
    tags: Mapping[str, str]
    """What may change without the content: set again where they differ."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    """Finite numbers."""
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Artifacts by the folder in which MLflow shows them; the empty name is the top."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifacts that are no files, by name."""
