"""`cona jobs`: which runs are being worked on, by whom, and which jobs a killed Snakemake left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cona.cli.options import json_option, out_option
from cona.cli.terminal import say, say_json
from cona.errors import ConfigError

if TYPE_CHECKING:
    from cona.jobs import Hold
    from cona.slurm import Job


@click.command(short_help="Show who works on which run, and orphaned SLURM jobs.")
@out_option
@click.option("--cancel", is_flag=True, help="End the orphans; they save first.")
@json_option
def jobs(results: Path, cancel: bool, as_json: bool) -> None:
    """Show the owners of runs, and the SLURM jobs that Snakemake submitted from this folder.

    What a killed Snakemake has started goes on. Started again, Snakemake waits for it and repeats
    nothing. SLURM's jobs among it are called orphans; --cancel ends them instead.

    With --json: holds (folder, alive, owner, host, pid, since), jobs (id, state, what, orphan;
    null without SLURM), and cancelled.

    \b
    Examples:
      cona jobs
      cona jobs --cancel && snakemake --unlock && snakemake --profile slurm
    """
    from cona import jobs as known
    from cona import slurm

    here, holds = Path.cwd(), list(known.holds(results))
    queued = known.jobs_of(here)
    orphans = known.orphans(here, queued or ())
    if cancel and queued is None:
        raise ConfigError("--cancel: no answer from SLURM's squeue; nearest: a login node")
    if cancel and orphans:
        slurm.cancel([job.id for job in orphans])
    if as_json:
        say_json(fields(holds, queued, orphans, cancelled=cancel and bool(orphans)))
    else:
        say(owners_text(holds))
        say(jobs_text(queued, orphans, cancelled=cancel))


def owners_text(holds: Sequence[Hold]) -> str:
    """Return who has which run, for people."""
    lines = [
        f"{hold.folder}: worked on by {hold.owner}"
        if hold.is_alive
        else f"{hold.folder}: left by {hold.owner}, which is gone"
        for hold in holds
    ]
    return "\n".join([*lines, f"{sum(hold.is_alive for hold in holds)} runs worked on"])


def jobs_text(queued: Sequence[Job] | None, orphans: Sequence[Job], *, cancelled: bool) -> str:
    """Return the jobs for people, and what became of the orphans."""
    if queued is None:
        return "no answer from SLURM here"
    lines = []
    for job in queued:
        orphan = ", orphan" if job in orphans else ""
        lines.append(f"SLURM job {job.id}: {job.state.lower()}, {job.what}{orphan}")
    if not orphans:
        return "\n".join([*lines, f"{len(queued)} SLURM jobs, no orphans"])
    if cancelled:
        return "\n".join([*lines, f"{len(orphans)} orphans cancelled"])
    then = "Snakemake, started again, waits for them; or --cancel"
    return "\n".join([*lines, f"{len(orphans)} orphans: {then}"])


def fields(
    holds: Iterable[Hold], queued: Iterable[Job] | None, orphans: Sequence[Job], *, cancelled: bool
) -> dict[str, Any]:
    """Return the same for programs."""
    shown = [
        {"id": job.id, "state": job.state, "what": job.what, "orphan": job in orphans}
        for job in queued or ()
    ]
    return {
        "holds": [
            {
                "folder": str(hold.folder),
                "alive": hold.is_alive,
                "owner": str(hold.owner),
                "host": hold.owner.host,
                "pid": hold.owner.pid,
                "since": hold.owner.since,
            }
            for hold in holds
        ],
        "jobs": None if queued is None else shown,
        "cancelled": cancelled,
    }
