"""What the gradient noise scale costs: iteration time here, bytes and FLOPs at full size.

Three iterations of one engine run in turn, so that a busy machine slows all: without statistics,
with ours, and with the peer's (own implementation). Ours takes |g_i|^2 of every micro-batch from
hooks. The peer, AdaptDL (Qiao et al., Pollux, OSDI 2021), takes the square norm of each replica's
summed gradient before the all-reduce and of the mean after it; with one replica it compares the
gradients of successive iterations. So it has dp gradients for an estimate, or two, and ours dp*m.
The processor's seconds are of rank 0 and leave out waiting, for others or for a busy machine.
Run from the repository: ``python benchmarks/gns_overhead.py``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
from gns_full_size import CLUSTER, MODEL, full_size_rows
from tabulate import tabulate

from cona.selftest.launch import Ranks
from cona.strategy import Layout

LAYOUTS = (
    None,
    Layout(dp=2, tp=1, pp=1),
    Layout(dp=1, tp=2, pp=1),
    Layout(dp=1, tp=1, pp=2),
)
"""None: the engine for one process."""

WAYS = ("without", "ours", "peer")
NUM_MICROBATCHES = 4
"""Of all replicas together."""


def timed_row(ranks: Ranks, layout: Layout | None, repeats: int) -> list[Any]:
    """Time one layout; return a row of the table."""
    num_ranks = layout.num_gpus if layout else 1
    name = str(layout or "single process")
    (seconds,) = ranks.run("gns_ranks:measure", num_ranks, layout, repeats, name=name)
    medians = [1e3 * median(wall for wall, _ in seconds[way]) for way in WAYS]
    ratios = [
        ratio(seconds[way], seconds["without"], clock) for clock in (0, 1) for way in WAYS[1:]
    ]
    peers_gradients = layout.dp if layout and layout.dp > 1 else 2
    return [name, NUM_MICROBATCHES, peers_gradients, *medians, *ratios]


def ratio(ours: list[Any], theirs: list[Any], clock: int) -> float:
    """Return the median ratio over pairs, of the wall (0) or of the processor's seconds (1)."""
    return median(a[clock] / b[clock] for a, b in zip(ours, theirs, strict=True))


@click.command()
@click.option("--repeats", default=9, show_default=True, help="Iterations timed per way.")
def main(repeats: int) -> None:
    """Print both tables, and the ratios of ours to none and to the peer."""
    with TemporaryDirectory() as logs:
        ranks = Ranks(on_gpus=False, logs=Path(logs))
        timed = [timed_row(ranks, layout, repeats) for layout in LAYOUTS]
    header = ["engine", "gradients", "peer's", "without ms", "ours ms", "peer ms"]
    header += ["ours/without", "peer/without", "processor: ours", "peer"]
    formats = ("", "", "", ".1f", ".1f", ".1f", *[".3f"] * 4)
    print(tabulate(timed, header, tablefmt="github", floatfmt=formats))
    counted = full_size_rows()
    print(f"\n{MODEL} on {CLUSTER}, full recomputation, a GPU of the last stage; goal 2 %")
    header = ["strategy", "bytes %", "peer's", "FLOPs %", "time %", "peer's"]
    print(tabulate(counted, header, tablefmt="github", floatfmt=("", *[".2f"] * 5)))
    print(last_line(timed, counted))


def last_line(timed: list[list[Any]], counted: list[list[Any]]) -> str:
    """Return the largest ratios; at full size those of micro-batches of 1, and of 4 and more."""
    wall, peer_wall, busy, peer_busy = (max(row[i] for row in timed) for i in (-4, -3, -2, -1))
    full_size = [
        f"mbs {word}: bytes {max(row[1] for row in rows):.2f} %, FLOPs "
        f"{max(row[3] for row in rows):.2f} %, time {max(row[4] for row in rows):.2f} %"
        for word, rows in (
            ("1", [row for row in counted if "-mbs1-" in row[0]]),
            ("4 or more", [row for row in counted if "-mbs4-" in row[0] or "-mbs16-" in row[0]]),
        )
    ]
    return (
        f"\nratios, at most: ours/without {wall:.3f} (processor {busy:.3f}), peer/without "
        f"{peer_wall:.3f} (processor {peer_busy:.3f}); at full size " + "; ".join(full_size)
    )


if __name__ == "__main__":
    main()
