"""Asks several commands at once, and waits for each answer no longer than it may take."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

LIMIT_S = 90.0
"""ASSUMED: what has not answered by then hangs; imports of 4 s took 40 s where 16 others ran."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int | None
    """Exit status, negative: the signal that ended it; None: it took too long and was ended."""
    out: str = ""
    err: str = ""

    @property
    def reason(self) -> str:
        """Why there is no good answer, in one line."""
        if self.code is None:
            return f"no answer within {LIMIT_S:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}"


Answers = Callable[[str], Answer | None]
"""Returns the answer to a question by name; None: its command is not installed."""


class Asked:
    """Commands that run side by side; none is left when the block ends.

    Args:
        commands: program and arguments of each question.
        limit_s: seconds from the start after which a command is ended.
    """

    def __init__(self, commands: Mapping[str, tuple[str, ...]], limit_s: float = LIMIT_S) -> None:
        self._commands, self._limit_s = commands, limit_s
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Callable[[str], Answer | None]:
        self._end_s = time.monotonic() + self._limit_s
        for name, command in self._commands.items():
            if shutil.which(command[0]):
                self._running[name] = _start(command)
        return self.answer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            _end(process)
            process.communicate()

    def answer(self, name: str) -> Answer | None:
        """Wait for an answer; None: the command is not installed."""
        process = self._running.get(name)
        if process is None:
            return None
        try:
            out, err = process.communicate(timeout=max(0.0, self._end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(code=None)
        return Answer(code=process.returncode, out=out, err=err)


def _start(command: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # so that its own processes can be ended with it
    )


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it has ended since
            os.killpg(process.pid, signal.SIGKILL)
