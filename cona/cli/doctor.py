"""`cona doctor`: can CONA-bench work here, what is missing, and what to do about it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cona.cli.options import json_option, out_option
from cona.cli.terminal import say, say_json, steps, table

if TYPE_CHECKING:
    from cona.doctor import Finding


@click.command(short_help="Check the installation, and say what to do.")
@out_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, results: Path, as_json: bool) -> None:
    """Check Python, packages, cores, GPUs, ranks, disks, data, MLflow and SLURM.

    \b
    ok      as it should be
    warn    works, but less, or slowly
    fail    something of CONA-bench does not work here; then the exit status is 1
    absent  not here, and needed only by those who want it

    With --json: passed, and checks with name, state, found, remedy, details.

    \b
    Examples:
      cona doctor
      cona doctor --json
      cona doctor --out /scratch/results        is there room?
    """
    from cona.doctor import CHECKS, examine

    found: list[Finding] = []
    for some in steps(examine(results), "examining", len(CHECKS)):
        found += some
    if as_json:
        passed = all(finding.state != "fail" for finding in found)
        say_json({"passed": passed, "checks": [asdict(finding) for finding in found]})
    else:
        say(as_text(found))
    ctx.exit(1 if any(finding.state == "fail" for finding in found) else 0)


def as_text(found: Sequence[Finding]) -> str:
    """Return the findings as a table, and how many there are of each kind."""
    from cona.doctor import STATES

    lines = [(one.name, one.state, one.found, one.remedy) for one in found]
    counts = Counter(one.state for one in found)
    words = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{table(('check', 'state', 'found', 'what to do'), lines)}\n\n{words}"
