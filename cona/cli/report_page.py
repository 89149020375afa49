"""`cona report`: a tier as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from cona.cli.options import json_option, load_tier, out_option, tier_option
from cona.cli.report import say_files
from cona.cli.terminal import working


@click.command("report", short_help="Write a tier's report: one HTML file.")
@tier_option
@out_option
@json_option
def report_page(tier_name: str, results: Path, as_json: bool) -> None:
    """Write <out>/<tier>/report.html, one file that opens offline.

    It shows the claims, figures and tables that `cona tables` and `cona figures` have written, and
    from the runs the decisions, timelines, cost breakdowns and provenance.

    With --json: files, the path of the page.

    \b
    Example:
      cona report --tier quick
    """
    tier = load_tier(tier_name)
    from cona.report.page import write_report

    with working(f"writing the report of {tier.name}"):
        path = write_report(results, tier)
    say_files([path], as_json)
