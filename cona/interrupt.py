"""Stopping between two iterations when a signal arrives, so that nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from cona import slurm
from cona.errors import ConaError

TIME_LIMIT = signal.SIGUSR1
"""What SLURM sends some time before a job's limit, if the job asked for it (slurm/README.md)."""

_HAS_LAUNCHER = "TORCHELASTIC_RUN_ID"
"""Environment variable of a rank whose launcher (`cona.launch`) passes signals on to it."""


class Interrupted(ConaError):  # noqa: N818 - a state, not a fault
    """A signal ended the run after its state was saved; the same command continues it.

    Args:
        signal_number: the signal that ended it.
        job: the SLURM job that gives the same command again, by itself.
    """

    def __init__(self, signal_number: int, job: str | None = None) -> None:
        then = f"SLURM job {job} is requeued" if job else "run the same command again"
        super().__init__(f"stopped by a signal; the state is saved, {then}")
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def requeued(stopped: Interrupted) -> Interrupted:
    """Put this SLURM job back into the queue if what ended its run was the time limit.

    SIGTERM is SLURM ending the job, which knows by itself whether it is to come back.

    Args:
        stopped: what ended the run.

    Raises:
        RunError: SLURM refuses.
    """
    job = slurm.own_job()
    if stopped.signal_number != TIME_LIMIT or job is None:
        return stopped
    slurm.requeue(job)
    return Interrupted(stopped.signal_number, job)


@dataclass
class Stop:
    """Whether a signal has arrived, or something else ends the run."""

    otherwise: Callable[[], None]
    """Raises if something else ends the run."""
    number: int | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self.number is not None:
            raise Interrupted(self.number)
        self.otherwise()


@contextmanager
def stop_signals(otherwise: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Turn SIGTERM, SIGINT and TIME_LIMIT into a request to stop after the current iteration.

    A second signal ends the process at once, which loses nothing but the last snapshot. Not so a
    launcher's rank: SLURM signals all processes of a job, and the launcher passes its signal on.

    Args:
        otherwise: raises if something else ends the run; called by every check.
    """
    stop = Stop(otherwise)
    is_signalled_twice = _HAS_LAUNCHER in os.environ

    def note(number: int, frame: FrameType | None) -> None:
        stop.number = number
        if not is_signalled_twice:
            signal.signal(number, signal.SIG_DFL)

    wanted = (signal.SIGTERM, signal.SIGINT, TIME_LIMIT)
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
