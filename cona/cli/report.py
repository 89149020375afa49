"""`cona tables`, `figures`, `claims`, `track` and `planners`: what people read of a tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from cona.analysis.groups import unique
from cona.cli.options import json_option, load_tier, out_option, tier_option
from cona.cli.terminal import say, say_json, working


def say_files(paths: Iterable[Path], as_json: bool) -> None:
    """Print the files that were written, a line each; or JSON: files."""
    if as_json:
        say_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)


def say_table(
    text: str, rows: Sequence[dict[str, Any]], paths: Sequence[Path], as_json: bool
) -> None:
    """Print the table that matters most, then the files; or JSON: files and rows."""
    if as_json:
        say_json({"files": [str(path) for path in paths], "rows": rows})
        return
    say(text)
    click.echo()
    say_files(paths, as_json)


@click.command(short_help="Write the tables of a tier, with the paper's claims.")
@tier_option
@out_option
@json_option
def tables(tier_name: str, results: Path, as_json: bool) -> None:
    """Write the tables of a tier, claims and provenance included: CSV and Markdown.

    Printed is how long every policy takes to the headline target, then the files.

    With --json: files, the paths of what was written, and rows: model, metric, target, policy,
    kind, clock, ttp_s, n, n_reached, speedup, speedup_is_at_least.

    \b
    Examples:
      cona tables --tier quick
      cona tables --tier paper@tiny --out my-results
    """
    tier = load_tier(tier_name)
    from cona.analysis.table_claims import write_claims
    from cona.analysis.table_provenance import write_provenance
    from cona.analysis.tables import write_tables
    from cona.cli import report_text

    with working(f"scoring {tier.name}"):
        paths = [*write_tables(results, tier.name), *write_claims(results, tier)]
        paths += write_provenance(results, tier)
    csv = {path.stem: path for path in paths if path.suffix == ".csv"}
    times = report_text.rows_of(csv["ttp"])
    rows = report_text.ttp_rows(times, report_text.rows_of(csv["speedup"]))
    models = unique(row["model"] for row in report_text.rows_of(csv["summary"]))
    say_table(report_text.ttp(rows, models), rows, paths, as_json)


@click.command(short_help="Draw the figures of a tier: PNG and PDF.")
@tier_option
@out_option
@json_option
def figures(tier_name: str, results: Path, as_json: bool) -> None:
    """Draw the figures of a tier: PNG and PDF.

    With --json: files, the paths of what was drawn.

    \b
    Example:
      cona figures --tier quick
    """
    tier = load_tier(tier_name)
    from cona.analysis.figures import write_figures

    with working(f"drawing {tier.name}"):
        paths = write_figures(results, tier.name)
    say_files(paths, as_json)


@click.command(short_help="Judge the paper's claims by the runs of a tier.")
@tier_option
@out_option
@click.option(
    "--readme",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Instead, put the claims table of the reference results into this file.",
)
@click.option(
    "--reference",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/reference"),
    show_default=True,
    help="Reference results that --readme takes the table from.",
)
@json_option
def claims(
    tier_name: str, results: Path, readme: Path | None, reference: Path, as_json: bool
) -> None:
    """Write the claims table of a tier: what the paper says, what was found, and the verdict.

    `cona tables` writes it too. With --readme nothing is judged: the committed table is copied.

    With --json: files, the paths of what was written, and rows, those of claims.csv (without them
    where --readme is given).

    \b
    Examples:
      cona claims --tier proxy
      cona claims --readme README.md
    """
    if readme:
        from cona.analysis.readme_claims import write_readme

        changed = write_readme(readme, reference)
        if as_json:
            say_files([readme] if changed else [], as_json)
        else:
            say(f"{readme}: {'claims table written' if changed else 'claims table is current'}")
        return
    tier = load_tier(tier_name)
    from cona.analysis.table_claims import write_claims
    from cona.cli import report_text

    with working(f"judging {tier.name}"):
        paths = write_claims(results, tier)
    rows = report_text.rows_of(paths[0])
    say_table(report_text.claims(rows), rows, paths, as_json)


@click.command(short_help="Import the runs of a tier into MLflow.")
@tier_option
@out_option
@click.option(
    "--uri",
    envvar="MLFLOW_TRACKING_URI",
    default="sqlite:///mlflow.db",
    show_default=True,
    show_envvar=True,
    help="MLflow tracking store: a database, or a server's http://host:port.",
)
@json_option
def track(tier_name: str, results: Path, uri: str, as_json: bool) -> None:
    """Import the runs of a tier into MLflow: finished, running, stopped and failed ones.

    Those that are there already are skipped. The files of the runs are the truth: a store that does
    not work loses nothing, and the same command catches up later.

    With --json: uri, num_new, num_known, and states, the number of runs by MLflow's status.

    \b
    Examples:
      cona track --tier quick && make ui
      cona track --tier proxy --uri http://localhost:5000
    """
    tier = load_tier(tier_name)
    from cona.tracking import import_runs
    from cona.tracking.uri import shown

    with working(f"importing {tier.name}"):
        report = import_runs(results, tier.name, uri)
    if as_json:
        counts = {"num_new": report.num_new, "num_known": report.num_known}
        say_json({"uri": shown(uri), **counts, "states": dict(report.states)})
        return
    states = ", ".join(f"{n} {state.lower()}" for state, n in report.states.items())
    say(f"{shown(uri)}: {report.num_new} runs imported, {report.num_known} known; {states}")


@click.command(short_help="Report what every planner picks at every gbs of a tier.")
@tier_option
@out_option
@json_option
def planners(tier_name: str, results: Path, as_json: bool) -> None:
    """Write the planner report of a tier: picks, beliefs and truth, as CSV and Markdown.

    It needs no run: `cona plan --planner` answers the same for one model. Printed is how much
    longer than the best each pick takes, then the files.

    With --json: files, the paths of what was written, and rows, those of planners.csv.

    \b
    Example:
      cona planners --tier smoke
    """
    tier = load_tier(tier_name)
    from cona.analysis.table_planners import write_planners
    from cona.cli import report_text

    with working("asking planners"):
        paths = write_planners(results, tier)
    rows = report_text.rows_of(paths[0])
    say_table(report_text.planners(rows), rows, paths, as_json)
