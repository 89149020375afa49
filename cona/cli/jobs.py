"""`cona jobs`: which runs are being worked on, by whom, and which jobs a killed Snakemake left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cona.cli.options import json_option, out_option
from cona.cli.terminal import say, say_json

if TYPE_CHECKING:
    from cona.jobs import Hold
    from cona.slurm import Job


@click.command(short_help="Show who works on which run, and orphaned SLURM jobs.")
@out_option
@click.option("--cancel", is_flag=True, help="End the orphans; they save first.")
@json_option
def jobs(results: Path, cancel: bool, as_json: bool) -> None:
    """Show the SLURM jobs that Snakemake submitted from this folder, and the owners of runs.

    Jobs whose Snakemake was killed go on as orphans. Started again, Snakemake queues behind them
    and repeats nothing; --cancel ends them instead.

    With --json: holds (folder, alive, owner), jobs (id, state, what, orphan), and cancelled.

    \b
    Examples:
      cona jobs
      cona jobs --cancel && snakemake --unlock && snakemake --profile slurm
    """
    from cona import jobs as known
    from cona import slurm

    holds = list(known.holds(results))
    if not as_json:
        for hold in holds:
            say(f"{hold.folder}: {'worked on by' if hold.is_alive else 'left by'} {hold.owner}")
    here = Path.cwd()
    queued = known.jobs_of(here)
    orphans = known.orphans(here, queued)
    if cancel and orphans:
        slurm.cancel([job.id for job in orphans])
    if as_json:
        say_json(fields(holds, queued, orphans, cancelled=cancel and bool(orphans)))
    else:
        say(as_text(queued, orphans, cancelled=cancel))


def as_text(queued: Sequence[Job], orphans: Sequence[Job], *, cancelled: bool) -> str:
    """Return the jobs for people, and what became of the orphans."""
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
    holds: Iterable[Hold], queued: Iterable[Job], orphans: Sequence[Job], *, cancelled: bool
) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "holds": [
            {"folder": str(hold.folder), "alive": hold.is_alive, "owner": str(hold.owner)}
            for hold in holds
        ],
        "jobs": [
            {"id": job.id, "state": job.state, "what": job.what, "orphan": job in orphans}
            for job in queued
        ],
        "cancelled": cancelled,
    }
