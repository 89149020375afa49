"""The benchmark of the noise scale's cost counts right, and runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gns_full_size import CLUSTER, MODEL, PAPER, Iteration  # noqa: E402

from cona.config import load  # noqa: E402
from cona.specs import ModelSpec  # noqa: E402
from cona.strategy import Strategy  # noqa: E402


def iteration(text: str) -> Iteration:
    return Iteration(load(ModelSpec, MODEL), Strategy.parse(text))


def test_counts_by_hand_without_model_parallelism():
    one = iteration("dp4-tp1-pp1-mbs4-gbs64")
    # 24 layers of 12 h^2 and two LayerNorms, and a table of 51,200 rows, with h = 2048.
    assert one.num_parameters == 24 * (12 * 2048**2 + 4 * 2048) + 51_200 * 2048
    assert one.ours.num_bytes == 4 * 2 * one.num_parameters + 3 * 8
    assert one.peer.num_bytes == 4 * one.num_parameters + 8
    # Forward twice (recomputation) and twice that backward: 8 FLOPs per weight and token, and some
    # for attention, on 16 samples of 1,024 tokens.
    matrices = 8 * 24 * 12 * 2048**2 + 6 * 51_200 * 2048
    assert one.work.flops == pytest.approx(matrices * 16 * 1024, rel=0.1)
    assert PAPER.recompute == "full"


def test_rows_of_a_tied_embedding_travel_only_between_stages():
    split, whole = iteration("dp1-tp1-pp4-mbs1-gbs64"), iteration("dp4-tp1-pp1-mbs1-gbs64")
    rows_bytes = 4 * 2 * 1024 * 2048  # read, packed, sent and multiplied, for 1,024 tokens
    assert split.ours.num_bytes == 64 * (2 * split.num_parameters + rows_bytes) + 3 * 8
    assert whole.ours.num_bytes == 16 * 2 * whole.num_parameters + 3 * 8


@pytest.mark.slow
def test_the_benchmark_prints_its_tables_and_ratios():
    command = [sys.executable, str(BENCHMARKS / "gns_overhead.py"), "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for words in ("single process", "dp1-tp1-pp2", f"{MODEL} on {CLUSTER}"):
        assert words in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ratios, at most: ours/without")
