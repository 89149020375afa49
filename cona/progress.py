"""Tells people how a run is doing: a progress bar, and events.jsonl with wall-clock times."""

from __future__ import annotations

import datetime
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from cona.errors import PolicyError, StorageError
from cona.gns import GnsEstimate
from cona.runlog import append_record
from cona.strategy import Strategy

EVENTS = "events.jsonl"
"""File of a run directory that gets its events."""


class RunProgress:
    """The progress of one run over its time budget.

    Args:
        folder: run directory; events.jsonl is appended there.
        title: shown before the bar.
        time_budget_s: seconds of the train clock at which the run ends.
        shown: draw the bar on standard error.
    """

    def __init__(self, folder: Path, title: str, time_budget_s: float, *, shown: bool) -> None:
        self._events = folder / EVENTS
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task(title, total=time_budget_s, state="")

    def __enter__(self) -> Self:
        self.event("resumed" if self._events.exists() else "started")
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if error is not None:
            with suppress(StorageError):  # a full disk: the error itself says so
                self.event("ended early", **_reason(error))

    def update(
        self,
        *,
        samples: int,
        train_s: float,
        ppl: float | None,
        gns: GnsEstimate,
        strategy: Strategy,
    ) -> None:
        """Show where the run is: samples, perplexity, GNS (samples), strategy, clock (seconds)."""
        noise = "-" if gns.gns is None else f"{gns.gns:.0f}"
        shown_ppl = "-" if ppl is None else f"{ppl:.1f}"
        # The strategy comes last: a narrow terminal cuts it first.
        state = f"{train_s:.1f} s, {samples} samples, ppl {shown_ppl}, GNS {noise}, {strategy}"
        self._bar.update(self._task, completed=train_s, state=state)

    def event(self, what: str, **fields: Any) -> None:
        """Append one event with the wall-clock time to events.jsonl."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        append_record(self._events, {"time": now, "event": what, **fields})


def _reason(error: BaseException) -> dict[str, str]:
    """Return what an event says of an error; of a policy's own, its traceback too."""
    said = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, PolicyError) and error.__cause__ is not None:
        said["traceback"] = "".join(traceback.format_exception(error.__cause__))
    return said
