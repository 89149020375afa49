"""The benchmarks that need no data start, measure something and print it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from snakemake_runs import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["step_speed.py", "--repeats", "1"], ["goal-gpt", "tokens/s", "bert-large-proxy"]),
        (["cost_speed.py"], ["ladder search, 4,096 GPUs", "rows/s"]),
        (["switch_cost.py", "--size", "small"], ["torch_dist", "universal", "live is"]),
    ],
)
def test_benchmark_prints_its_table(command: list[str], words: list[str]) -> None:
    script, *options = command
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
