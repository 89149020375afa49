"""`cona tables`, `figures`, `track` and `planners`: what people read of a tier."""

from __future__ import annotations

from pathlib import Path

import click

from cona.cli.options import load_tier, out_option, tier_option


@click.command()
@tier_option
@out_option
def tables(tier_name: str, results: Path) -> None:
    """Write the tables of a tier: CSV and Markdown."""
    tier = load_tier(tier_name)
    from cona.analysis.tables import write_tables

    for path in write_tables(results, tier.name):
        click.echo(path)


@click.command()
@tier_option
@out_option
def figures(tier_name: str, results: Path) -> None:
    """Draw the figures of a tier: PNG and PDF."""
    tier = load_tier(tier_name)
    from cona.analysis.figures import write_figures

    for path in write_figures(results, tier.name):
        click.echo(path)


@click.command(short_help="Import the runs of a tier into MLflow.")
@tier_option
@out_option
@click.option(
    "--uri", default="sqlite:///mlflow.db", show_default=True, help="MLflow tracking store."
)
def track(tier_name: str, results: Path, uri: str) -> None:
    """Import the runs of a tier into MLflow; those that are there already are skipped."""
    tier = load_tier(tier_name)
    from cona.tracking import import_runs

    report = import_runs(results, tier.name, uri)
    click.echo(
        f"{uri}: {report.num_new} runs imported ({report.num_failed} of them diverged), "
        f"{report.num_known} known, {report.num_unfinished} unfinished"
    )


@click.command(short_help="Report what every planner picks at every gbs of a tier.")
@tier_option
@out_option
def planners(tier_name: str, results: Path) -> None:
    """Write the planner report of a tier: picks, beliefs and truth, as CSV and Markdown.

    It needs no run: `cona plan --planner` answers the same for one model.
    """
    tier = load_tier(tier_name)
    from cona.analysis.table_planners import write_planners

    for path in write_planners(results, tier):
        click.echo(path)
