"""Stopping between two iterations when a signal arrives, so that nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from cona.errors import ConaError


class Interrupted(ConaError):  # noqa: N818 - a state, not a fault
    """A signal ended the run after its state was saved; the same command continues it.

    Args:
        signal_number: the signal that ended it.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__("stopped by a signal; the state is saved, run the same command again")
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


@dataclass
class Stop:
    """Whether a signal has arrived."""

    number: int | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a request to stop after the current iteration.

    A second signal ends the process at once, which loses nothing but the last snapshot.
    """
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(number, signal.SIG_DFL)

    wanted = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
