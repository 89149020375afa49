"""`cona jobs`: which runs are being worked on, by whom, and which jobs a killed Snakemake left."""

from __future__ import annotations

from pathlib import Path

import click

from cona.cli.options import out_option


@click.command(short_help="Show who works on which run, and jobs that a killed Snakemake left.")
@out_option
@click.option("--cancel", is_flag=True, help="End the orphans; they save first.")
def jobs(results: Path, cancel: bool) -> None:
    """Show the SLURM jobs that Snakemake submitted from this folder, and the owners of runs.

    Jobs whose Snakemake was killed go on as orphans. Started again, Snakemake queues behind them
    and repeats nothing; --cancel ends them instead.

    \b
    Examples:
      cona jobs
      cona jobs --cancel && snakemake --unlock && snakemake --profile slurm
    """
    from cona import jobs as known
    from cona import slurm

    for hold in known.holds(results):
        state = "worked on by" if hold.is_alive else "left by"
        click.echo(f"{hold.folder}: {state} {hold.owner}")
    here = Path.cwd()
    queued = known.jobs_of(here)
    orphans = known.orphans(here, queued)
    for job in queued:
        orphan = ", orphan" if job in orphans else ""
        click.echo(f"SLURM job {job.id}: {job.state.lower()}, {job.what}{orphan}")
    if not orphans:
        click.echo(f"{len(queued)} SLURM jobs, no orphans")
    elif cancel:
        slurm.cancel([job.id for job in orphans])
        click.echo(f"{len(orphans)} orphans cancelled")
    else:
        click.echo(f"{len(orphans)} orphans: Snakemake, started again, waits for them; or --cancel")
