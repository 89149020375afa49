"""Which SLURM jobs belong to a working directory, which Snakemake leads them, who has which run.

Killed with SIGKILL, Snakemake leaves its jobs in the queue: orphans, which it would submit again.
They are recognised by the comment that Snakemake's plugin gives a job and by the directory, and a
new job for the same runs is queued behind them: it finds the runs finished, or continues them.
"""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cona import slurm
from cona.lock import Lock
from cona.owner import Owner

_LEADERS = Path(".snakemake") / "leaders"
_QUEUE_AGE_S = 20
"""ASSUMED: how old an answer of SLURM's may be when hundreds of jobs are planned."""


# --- the Snakemake that leads -------------------------------------------------------------------


def lead(log: str | list[str]) -> None:
    """Let others see, until this process ends, that the Snakemake of its SLURM jobs is there.

    Args:
        log: Snakemake's log file or, in newer versions, all of them; names the SLURM run, if any.
    """
    paths = [log] if isinstance(log, str) else log
    text = "".join(Path(path).read_text(encoding="utf-8") for path in paths)
    found = re.search(r"SLURM run ID: ([\w-]+)", text)
    if found is None:  # not on SLURM
        return
    folder = Path.cwd() / _LEADERS / found.group(1)
    folder.mkdir(parents=True)
    Lock(folder).__enter__()
    atexit.register(shutil.rmtree, folder)


def led_runs(folder: Path) -> set[str]:
    """Return the names that jobs of every Snakemake have that works in a folder: its SLURM run."""
    leaders = {path.name: Lock(path).owner() for path in (folder / _LEADERS).glob("*")}
    return {run for run, found in leaders.items() if found and found[1]}


# --- jobs ---------------------------------------------------------------------------------------


def jobs_of(folder: Path) -> list[slurm.Job] | None:
    """Return the jobs in the queue that Snakemake submitted from a folder; None: SLURM is silent.

    It is not on this machine, or does not answer.
    """
    jobs = slurm.queue()
    return None if jobs is None else _submitted_from(folder, jobs)


def orphans(folder: Path, jobs: Iterable[slurm.Job]) -> list[slurm.Job]:
    """Return those jobs whose Snakemake is gone."""
    runs = led_runs(folder)
    return [job for job in jobs if job.name not in runs]


def before(rule: str, values: Iterable[str]) -> list[str]:
    """Return the ids of jobs in the queue that already are what is to be submitted.

    Args:
        rule: name of the rule.
        values: of its wildcards.
    """
    comment = f"rule_{rule}_wildcards_{'_'.join(values)}"
    jobs = _submitted_from(Path.cwd(), _queue(int(time.time() / _QUEUE_AGE_S)))
    return [job.id for job in jobs if job.comment == comment and job.id != slurm.own_job()]


@functools.lru_cache(maxsize=1)
def _queue(period: int) -> tuple[slurm.Job, ...]:
    return tuple(slurm.queue() or ())


def _submitted_from(folder: Path, jobs: Iterable[slurm.Job]) -> list[slurm.Job]:
    here, ours = folder.resolve(), "rule_"
    return [j for j in jobs if j.comment.startswith(ours) and Path(j.folder).resolve() == here]


# --- runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A run directory and the process that has, or had, the right to write into it."""

    folder: Path
    owner: Owner
    is_alive: bool
    """Whether that process may still write."""


def holds(results: Path) -> Iterator[Hold]:
    """Yield the runs below a results folder that have an owner."""
    for folder in sorted(results.glob("*/*/*/seed*")):
        found = Lock(folder).owner() if folder.is_dir() else None
        if found:
            yield Hold(folder=folder, owner=found[0], is_alive=found[1])
