"""What a check of `cona doctor` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from cona.doctor.ask import Answers

State = Literal["ok", "warn", "fail", "absent"]
"""ok: as it should be; warn: works, but less, or slowly; fail: something of CONA-bench does not
work here; absent: not here, and needed only by those who want it."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    """What is there, in words."""
    remedy: str = ""
    """What to do; empty: nothing."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The same and more for programs; sizes in bytes, times in seconds."""


Check = Callable[[Path, Answers], Iterator[Finding]]
"""Looks at one thing: gets the results folder and the answers of the commands that were asked."""
