"""Seconds to change the layout of a training run: in memory, and three ways through the disk.

Four ranks on this machine (gloo), one thread each. All methods end with everything ready for the
next iteration, the new layout's gradient buffer included. ``live``: our switch. ``dcp`` (our
restart path: torch.distributed.checkpoint, checksummed and synced) and ``torch_dist`` (megatron's):
save, set up, load, in the same processes, which is the least that a disk path can cost.
``universal``: the paper's way; DeepSpeed saves and converts, the processes end, fresh ones import,
build and load. DeepSpeed with ZeRO has no pipeline: one row. MB/s are those of the whole state.

Run from the repository: ``python benchmarks/switch_cost.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
from switch_plan import NUM_BEFORE, NUM_RANKS, SIZES, TRANSITIONS, Measured, spec_of
from tabulate import tabulate

STATE_BYTES = 12
"""Of one parameter: weight and two moments, float32."""

MAX_ERROR = 1e-5


def play(role: str, size: str, folder: Path, repeats: int = 1) -> Any:
    """Start the ranks in a role, wait for them, and return rank 0's result."""
    script = str(Path(__file__).with_name("switch_ranks.py"))
    command = [sys.executable, "-W", "ignore", script, role, size, str(repeats), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(NUM_RANKS)]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise click.ClickException(f"{role}: the ranks ended with {codes}")
    return json.loads((folder / f"{role}.json").read_text())


def universal(size: str, folder: Path, expected: list[float]) -> Measured:
    """Time the paper's way, by the clock on the wall from the old processes to the new ones."""
    (began,) = play("universal_save", size, folder)
    loaded, *losses = play("universal_load", size, folder)
    files = [file.stat().st_size for file in (folder / "universal").rglob("*") if file.is_file()]
    old, new = TRANSITIONS[0]
    return Measured(
        method="universal",
        old=str(old),
        new=str(new),
        seconds=loaded - began,
        moved_bytes=2 * sum(files),
        error=max(abs(a / b - 1) for a, b in zip(losses, expected[NUM_BEFORE:], strict=False)),
    )


def medians(found: list[Measured]) -> list[Measured]:
    """Return one measurement of each method and transition: the median, with the worst error."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for m in found:
        groups.setdefault((m.method, m.old, m.new), []).append(m)
    return [
        replace(
            group[0],
            seconds=statistics.median(m.seconds for m in group),
            error=max(m.error for m in group),
        )
        for group in groups.values()
    ]


def row(measured: Measured, state_bytes: int) -> list[object]:
    """Return a line of the table."""
    needed, moved = measured.needed_bytes, measured.moved_bytes
    bound = None if needed is None else moved / needed if needed else 1.0 + (moved > 0)
    return [
        f"{measured.old} > {measured.new}",
        measured.method,
        measured.seconds,
        state_bytes / measured.seconds / 1e6,
        moved / 1e6,
        bound,
        measured.extra_memory,
        measured.error,
    ]


def ratios(found: list[Measured]) -> str:
    """Return by how much the live switch is faster: over all transitions, and at the worst."""
    seconds = {(m.method, m.old, m.new): m.seconds for m in found}
    pairs = [(str(old), str(new)) for old, new in TRANSITIONS]
    live = [seconds["live", *pair] for pair in pairs]
    disk = [min(seconds[method, *pair] for method in ("dcp", "torch_dist")) for pair in pairs]
    worst = min(d / s for d, s in zip(disk, live, strict=True))
    stock = seconds["universal", *pairs[0]] / live[0]
    return (
        f"live is {sum(disk) / sum(live):.1f}x faster than the faster disk path (goal 2x; at the "
        f"worst transition {worst:.1f}x) and {stock:.1f}x faster than DeepSpeed universal with its "
        "restart (goal 10x)"
    )


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="full", show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Of all methods but universal.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where files go.")
def main(size: str, repeats: int, folder: Path | None) -> None:
    """Print seconds, MB/s and bytes of every method on every transition."""
    spec, load = spec_of(size), round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        first = play("engines", size, Path(scratch), repeats)
        found = medians([Measured(**measured) for measured in first["measured"]])
        found.append(universal(size, Path(scratch), first["losses"]))
    header = ["layouts", "method", "seconds", "MB/s", "moved MB", "moved/bound"]
    header += ["extra memory", "loss error"]
    state_bytes = spec.num_params * STATE_BYTES
    print(
        f"{spec.num_params / 1e6:.1f} million parameters, {state_bytes / 1e6:.0f} MB of state; "
        f"median of {repeats}; load {load} on {os.cpu_count()} cores before the start"
    )
    rows = [row(m, state_bytes) for m in found]
    rows += [[f"{old} > {new}", "universal: no pipeline"] for old, new in TRANSITIONS[1:]]
    formats = ("", "", ".2f", ".0f", ".1f", ".2f", ".2f", ".0e")
    print(tabulate(rows, header, tablefmt="github", floatfmt=formats))
    if wrong := [m for m in found if not m.error < MAX_ERROR]:
        raise click.ClickException(f"the losses changed: {wrong}")
    print(ratios(found))


if __name__ == "__main__":
    main()
