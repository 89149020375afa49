"""Whether CONA-bench can work on this machine, what is missing, and what to do about it.

What takes long (the ranks, DeepSpeed, SLURM's commands) is started first and runs side by side, in
processes of its own that end with the examination; meanwhile everything else is looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cona.doctor import disks, hardware, services, software
from cona.doctor.ask import Asked
from cona.doctor.finding import STATES, Check, Finding, State

__all__ = ["CHECKS", "STATES", "Check", "Finding", "State", "examine", "questions"]

CHECKS: tuple[Check, ...] = (
    software.python,
    software.packages,
    software.extras,
    hardware.cores,
    disks.results,
    disks.cache,
    disks.shared_memory,
    disks.data,
    services.mlflow,
    services.browser,
    services.slurm,
    hardware.gpu,
    hardware.engine,
    software.deepspeed,
)
"""In this order: what takes long comes last, and is then done."""


def examine(results: Path) -> Iterator[list[Finding]]:
    """Yield what each check finds, in order.

    Args:
        results: folder where results are or would be.
    """
    with Asked(questions()) as answers:
        for check in CHECKS:
            yield list(check(results, answers))


def questions() -> dict[str, tuple[str, ...]]:
    """Return the commands that are asked, by name."""
    return {
        "ranks": (sys.executable, "-m", "cona.doctor.ranks"),
        "deepspeed": (sys.executable, "-c", software.IMPORT_DEEPSPEED),
        "gpus": ("nvidia-smi", f"--query-gpu={hardware.GPU_FIELDS}", "--format=csv,noheader"),
        "partitions": ("sinfo", "--noheader", "--format=%P\t%a\t%D"),
        "queue": ("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i"),
    }
