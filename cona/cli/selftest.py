"""`cona selftest`: is the parallel engine right on this machine?"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cona.cli.options import json_option
from cona.cli.terminal import say, say_json, table

if TYPE_CHECKING:
    from cona.selftest import SelfTest, Verdict

FAMILIES = ("gpt", "llama", "bert")
PRECISIONS = ("fp32", "bf16", "fp16")
CPU_NPROC = 4
"""ASSUMED: ranks where there is no GPU: the fewest that combine any two kinds of parallelism."""


@click.command(short_help="Check parallel training and live switches on this machine.")
@click.option("--nproc", type=int, help="Ranks; default: one per GPU, or 4 on the CPU.")
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(FAMILIES),
    help="Only this family; may be repeated.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="Tested after fp32, with looser tolerances.",
)
@json_option
@click.option("--quiet", is_flag=True, help="No progress bar, even on a terminal.")
@click.pass_context
def selftest(
    ctx: click.Context,
    nproc: int | None,
    families: tuple[str, ...],
    precision: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare every layout of up to NPROC ranks with a single process.

    The losses, both terms of the gradient noise scale and the gradient norm of 5 iterations must
    be equal, and so must the losses of 20 iterations that go through all layouts by live switches.
    The exit status is 0 only if all are.

    With --json: passed, nproc, hardware, tolerances, and cases with their differences.

    \b
    Examples:
      cona selftest                              every GPU, or 4 ranks on the CPU
      cona selftest --nproc 2 --family gpt
      cona selftest --nproc 8 --precision bf16 --json
    """
    import torch

    from cona.selftest import ENGINE, SelfTest

    num_gpus = torch.cuda.device_count()
    test = SelfTest(
        nproc=(num_gpus or CPU_NPROC) if nproc is None else nproc,
        families=families or FAMILIES,
        precision=precision,
        num_gpus=num_gpus,
        engine=ENGINE,
    )
    hardware = torch.cuda.get_device_name() if num_gpus else "CPU"
    verdicts = list(run(test, shown=not quiet and sys.stderr.isatty()))
    show = show_json if as_json else show_table
    show(verdicts, test.nproc, hardware)
    ctx.exit(0 if all(verdict.passed for verdict in verdicts) else 1)


def run(test: SelfTest, *, shown: bool) -> Iterator[Verdict]:
    """Yield the verdicts with a progress bar; what the ranks printed is kept if one failed."""
    logs = Path(tempfile.mkdtemp(prefix="cona-selftest-"))
    failed = False
    try:
        for verdict in with_progress(test.run(logs), test.num_cases, shown=shown):
            failed = failed or not verdict.passed
            yield verdict
    finally:
        if not failed:
            shutil.rmtree(logs)
    if failed:
        click.echo(f"what the ranks printed is in {logs}", err=True)


def with_progress(verdicts: Iterable[Verdict], total: int, *, shown: bool) -> Iterator[Verdict]:
    """Yield verdicts and show on standard error how many there are, and the last."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown) as progress:
        task = progress.add_task("starting", total=total)
        for verdict in verdicts:
            progress.update(task, advance=1, description=f"{verdict.case.family} {verdict.case}")
            yield verdict


def show_json(verdicts: Sequence[Verdict], nproc: int, hardware: str) -> None:
    """Print all that is known, for machines."""
    from cona.selftest import TOLERANCES

    report = {
        "passed": all(verdict.passed for verdict in verdicts),
        "nproc": nproc,
        "hardware": hardware,
        "tolerances": TOLERANCES,
        "cases": [verdict.record() for verdict in verdicts],
    }
    say_json(report)


def show_table(verdicts: Sequence[Verdict], nproc: int, hardware: str) -> None:
    """Print a line for each case, the reasons of those that did not end, and a last line."""
    from cona.selftest import QUANTITIES

    say(f"Largest relative differences, {nproc} ranks, {hardware}")
    head = ("family", "precision", "layout", *QUANTITIES, "result")
    say(table(head, [_cells(verdict) for verdict in verdicts], drop=QUANTITIES))
    for verdict in verdicts:
        if verdict.note:
            say(f"{verdict.case.family} {verdict.case}: {verdict.note}")
    passed = sum(verdict.passed for verdict in verdicts)
    say(f"{passed} of {len(verdicts)} passed; {tolerances(verdicts)}")


def _cells(verdict: Verdict) -> list[str]:
    from cona.selftest import QUANTITIES

    case, found = verdict.case, verdict.differences
    differences = [f"{found[name]:.1e}" if name in found else "-" for name in QUANTITIES]
    result = "pass" if verdict.passed else "FAIL"
    return [case.family, case.precision, str(case), *differences, result]


def tolerances(verdicts: Sequence[Verdict]) -> str:
    """Return in words what passes, for the precisions that were tested."""
    from cona.selftest import TOLERANCES

    limits = {v.case.precision: TOLERANCES[v.case.precision] for v in verdicts}
    return "; ".join(
        f"{precision} within " + ", ".join(f"{name} {limit:g}" for name, limit in limit.items())
        for precision, limit in limits.items()
    )
