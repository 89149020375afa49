"""Runs in processes of their own, forked from one that has imported everything already.

What a test kills is a real process with real files; only the seconds of importing are saved.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import file_faults

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["cona.engine.parallel", "cona.engine.megatron", "cona.cli"])


@dataclass(frozen=True, kw_only=True)
class Disk:
    """How a process's file system behaves."""

    kind: str = "none"
    """A key of ``file_faults.KINDS``."""
    at: int = 1
    """Number of the operation at which it begins."""
    folder: Path = Path("/")
    """Below which."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that was started, and where it says what it says."""

    process: BaseProcess
    output: Path

    def ends(self, timeout_s: float = 300.0) -> tuple[int, str]:
        """Wait for its end; return the exit status (negative: the signal) and what it said."""
        self.process.join(timeout_s)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"did not end in {timeout_s} s: {self.said()}")
        return code, self.said()

    def said(self) -> str:
        """Return what it has written to its terminal so far."""
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""

    def num_operations(self) -> int:
        """Return how many operations on files it asked for, in all."""
        return int(self.output.with_suffix(".operations").read_text(encoding="utf-8"))

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.join()


def start(
    output: Path,
    call: Callable[..., Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    disk: Disk | None = None,
) -> Child:
    """Call a function of a module in a new process.

    Args:
        output: file for its standard output and error.
        call: its return value is not kept.
        args: of the call; they can be pickled.
        env: environment variables, added.
        disk: how its file system behaves.
    """
    process = _CONTEXT.Process(target=_child, args=(output, call, args, env or {}, disk))
    process.start()
    return Child(process=process, output=output)


def _child(
    output: Path, call: Callable[..., Any], args: Any, env: Mapping[str, str], disk: Disk | None
) -> None:
    os.environ.update(env, OMP_NUM_THREADS="1")
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    disk = disk or Disk()
    faults = file_faults.KINDS[disk.kind](disk.folder, disk.at)
    faults.install()
    try:
        call(*args)
    except Exception:  # noqa: BLE001 - as in a process that nobody has forked
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    finally:
        output.with_suffix(".operations").write_text(str(faults.count), encoding="utf-8")


def be_cona(*arguments: str) -> None:
    """Be the `cona` command."""
    from cona.cli import main

    sys.argv = ["cona", *arguments]
    main()
