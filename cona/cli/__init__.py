"""The `cona` command: lists what exists, trains policies, and turns results into tables.

What is slow to import (torch, megatron-core, pandas, mlflow) is imported inside the commands that
need it, so that every other call starts at once.
"""

from __future__ import annotations

from typing import Any

import click

from cona import __version__
from cona.cli.calibrate import calibrate
from cona.cli.jobs import jobs
from cona.cli.lists import clusters, models, policies, tiers
from cona.cli.plan import plan
from cona.cli.predict import predict
from cona.cli.replay import replay, trace
from cona.cli.report import figures, planners, tables, track
from cona.cli.selftest import selftest
from cona.cli.train import data, run
from cona.errors import ConaError

EXAMPLES = """\b
Examples:
  cona policies                      what can be compared
  cona run --model gpt3-1.3b-proxy --policy cona --tier quick
  cona run --model bert-large-proxy --policy cona --policy fixed-best-gbs64 \\
      --seed 0 --seed 1 --set budget.iterations=50 --out try
  cona tables --tier quick           score what has been trained
  cona plan --model gpt3-1.3b --cluster dgx-h100@2 --gbs 64    rank strategies, no GPU needed
"""


class Cona(click.Group):
    """A group of commands whose errors are one line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command; a ConaError becomes one line on stderr."""
        try:
            return super().invoke(ctx)
        except ConaError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except OSError as error:  # a full disk, a read-only folder, a file in a folder's place
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"Error: {where}{error.strerror or error}", err=True)
            ctx.exit(1)


@click.group(cls=Cona, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cona")
def main() -> None:
    """Benchmark of online parallelism-strategy chaining for LLM training."""


COMMANDS = (
    policies,
    models,
    clusters,
    tiers,
    plan,
    predict,
    replay,
    trace,
    calibrate,
    selftest,
    data,
    run,
    jobs,
    tables,
    figures,
    track,
    planners,
)
for command in COMMANDS:
    main.add_command(command)
