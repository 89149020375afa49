"""The `cona` command: lists what exists, trains policies, and turns results into tables.

What is slow to import (torch, megatron-core, pandas, mlflow) is imported inside the commands that
need it, so that every other call starts at once.
"""

from __future__ import annotations

import click

from cona import __version__
from cona.cli.calibrate import calibrate
from cona.cli.completion import completion
from cona.cli.data import data
from cona.cli.doctor import doctor
from cona.cli.estimate import estimate
from cona.cli.group import Cona
from cona.cli.jobs import jobs
from cona.cli.lists import clusters, models, policies, scales, tiers
from cona.cli.plan import plan
from cona.cli.predict import predict
from cona.cli.replay import replay, trace
from cona.cli.report import claims, figures, planners, tables, track
from cona.cli.report_page import report_page
from cona.cli.selftest import selftest
from cona.cli.train import run
from cona.cli.whatif import whatif

EPILOG = """\b
Examples:
  cona policies                      what can be compared
  cona run --model gpt3-1.3b-proxy --policy cona --tier quick
  cona tables --tier quick           score what has been trained
  cona plan --model gpt3-1.3b --cluster dgx-h100@2 --gbs 64    no GPU needed

\b
Exit status:
  0        done
  1        it could not be done: a run, a file, a disk or a server; or a
           check failed
  2        what was asked for is wrong: an option, a name, a setting, a text
  128 + N  ended by signal N: 130 Ctrl-C, 143 SIGTERM, 138 SLURM's time limit
           (the job is requeued); a run is saved, the same command continues it
"""


@click.group(cls=Cona, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cona")
def main() -> None:
    """Benchmark of online parallelism-strategy chaining for LLM training.

    `cona COMMAND --help` shows options and examples. Errors are one sentence on stderr; answers,
    tables and JSON (--json) go to stdout, progress to stderr if that is a terminal.
    """


SECTIONS = {
    "What there is": (policies, models, clusters, tiers, scales),
    "Plan without training": (plan, predict, calibrate, planners, estimate),
    "Train": (data, run, jobs),
    "Read results": (tables, figures, claims, report_page, track),
    "Ask recorded runs": (trace, replay, whatif),
    "This machine": (doctor, selftest, completion),
}
for title, commands in SECTIONS.items():
    main.add_section(title, commands)

COMMANDS = tuple(command for commands in SECTIONS.values() for command in commands)
