"""Strategies per second of the improved cost model on one core, and the time of a whole search.

Time, memory and feasibility of every row are computed; the goal is a million rows per second for
a batch of 100,000, and a ladder search on 4,096 GPUs in 0.1 s. Run from the repository:
``python benchmarks/cost_speed.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import numpy as np
from tabulate import tabulate

from cona.config import load
from cona.cost.calculon import Calculon
from cona.cost.constants import load as load_calibration
from cona.cost.improved import Improved
from cona.cost.inputs import Inputs, of_cluster, of_model, of_stack
from cona.cost.predictions import predict
from cona.specs import ClusterSpec, LadderSpec, ModelSpec
from cona.strategy import Strategy, StrategySpace

MODEL, CLUSTER = "gpt3-1.3b", "dgx-a100@512"
LADDER = LadderSpec(gbs_min=8, gbs_max=8192)


def random_rows(num_rows: int) -> Inputs:
    """Return random strategies of every technique, each with its own model shape."""
    rng = np.random.default_rng(0)

    def powers(low: int, high: int) -> np.ndarray:
        return 2.0 ** rng.integers(low, high + 1, num_rows)

    def flags(high: int = 1) -> np.ndarray:
        return rng.integers(0, high + 1, num_rows).astype(float)

    columns = of_model(load(ModelSpec, MODEL)) | of_cluster(load(ClusterSpec, CLUSTER))
    columns |= of_stack()
    columns |= {"hidden": powers(10, 13), "num_layers": powers(3, 6), "seq": powers(9, 13)}
    columns |= {"ffn": 4 * columns["hidden"], "cp": powers(0, 2), "virtual_stages": powers(0, 1)}
    columns |= {"dp": powers(0, 7), "tp": powers(0, 3), "pp": powers(0, 3), "mbs": powers(0, 4)}
    columns |= {"gbs": columns["dp"] * columns["mbs"] * powers(0, 5), "zero_stage": flags(3)}
    columns |= {"sequence_parallel": flags(), "recompute_attention": flags()}
    columns["recompute_rest"] = columns["recompute_attention"] * flags()
    return Inputs(**columns)


def ladder_search(model: ModelSpec, cluster: ClusterSpec) -> dict[int, Strategy]:
    """Return the best strategy of every rung that has a feasible one, by exhaustive search."""
    prices = Improved(model, cluster)
    space = StrategySpace(model=model, num_gpus=cluster.num_gpus, ladder=LADDER)
    best = {}
    for gbs in LADDER.rungs:
        if found := space.at(gbs):
            seen = prices.predict(found)
            times_s = np.where(seen.feasible, seen.time_s, np.inf)
            if np.isfinite(times_s).any():
                best[gbs] = found[int(times_s.argmin())]
    return best


def fastest_s(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor seconds of several runs: what the code needs when undisturbed."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@click.command()
@click.option("--rows", "num_rows", default=200_000, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(num_rows: int, repeats: int) -> None:
    """Print rows per second and the seconds of a ladder search, on one core."""
    model, cluster = load(ModelSpec, MODEL), load(ClusterSpec, CLUSTER)
    rows, calibration = random_rows(num_rows), load_calibration(cluster.gpu)
    batch_s = fastest_s(lambda: predict(rows, calibration), repeats)
    search_s = fastest_s(lambda: ladder_search(model, cluster), repeats)
    space = StrategySpace(model=model, num_gpus=cluster.num_gpus, ladder=LADDER)
    num_found = sum(len(space.at(gbs)) for gbs in LADDER.rungs)
    paper = load(ClusterSpec, "a100x4-2node")
    few = StrategySpace(model=model, num_gpus=paper.num_gpus, ladder=LADDER).at(256)
    few = tuple(s for s in few if s.tp < 4)
    calculon_s = fastest_s(lambda: Calculon(model, paper).times_s(few), repeats) / len(few)
    table = [
        [f"improved, batch of {num_rows:,}", f"{num_rows / batch_s:,.0f} rows/s", "1,000,000"],
        [
            f"ladder search, {cluster.num_gpus:,} GPUs, {num_found} strategies",
            f"{search_s:.3f} s",
            "0.1",
        ],
        ["calculon preset, one model and cluster", f"{1 / calculon_s:,.0f} rows/s", ""],
    ]
    print(tabulate(table, ["what", "measured", "goal"], tablefmt="github"))


if __name__ == "__main__":
    main()
