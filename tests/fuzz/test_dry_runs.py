"""Ten dry runs as users start them, half of them of broken files: an exit status and a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
SNAKEMAKE = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--dry-run", "--cores", "1"]
RUN = ["cona", "run", "--dry-run", "--model", "gpt3-1.3b-proxy", "--policy", "cona"]
PLAN = ["cona", "plan", "--gbs", "64"]

Change = dict[str, object]

CASES: list[tuple[str, list[str], str, Change, str | None]] = [
    # command, arguments that take a file, the file, what is changed in it, the sentence
    ("snakemake", [*SNAKEMAKE, "--config", "tier=FILE"], "tiers/smoke", {"name": "mine"}, None),
    (
        "snakemake",
        [*SNAKEMAKE, "--config", "tier=FILE"],
        "tiers/quick",
        {"policies": ["cona", "cona-zz3"]},
        "policy 'cona-zz3': unknown parameter 'zz3'",
    ),
    (
        "snakemake",
        [*SNAKEMAKE, "--config", "tier=FILE"],
        "tiers/smoke",
        {"ladder": {"gbs_min": 8, "gbs_max": 2**60}},
        "ladder.gbs_max = 1152921504606846976: input should be less than or equal to 1048576",
    ),
    ("cona run", [*RUN, "--tier", "FILE"], "tiers/quick", {"seeds": [1, 2]}, None),
    (
        "cona run",
        [*RUN, "--tier", "FILE"],
        "tiers/quick",
        {"budgets": {"iterations": 5}},
        "unknown key 'budgets': did you mean 'budget'?",
    ),
    (
        "cona run",
        [*RUN, "--tier", "FILE", "--set", "divergence.patience_iterations=0"],
        "tiers/smoke",
        {},
        "divergence.patience_iterations = 0: input should be greater than 0",
    ),
    (
        "cona plan",
        [*PLAN, "--model", "gpt3-1.3b", "--cluster", "FILE"],
        "clusters/dgx-h100",
        {"num_nodes": 2},
        None,
    ),
    (
        "cona plan",
        [*PLAN, "--model", "gpt3-1.3b", "--cluster", "FILE"],
        "clusters/dgx-h100",
        {"num_nodes": 10**9},
        "num_nodes*gpus_per_node = 1000000000*8 exceeds 131072 GPUs; nearest: num_nodes 16384",
    ),
    (
        "cona plan",
        [*PLAN, "--cluster", "a100x4-2node", "--model", "FILE"],
        "models/bert-large",
        {"num_layers": 48},
        None,
    ),
    (
        "cona plan",
        [*PLAN, "--cluster", "a100x4-2node", "--model", "FILE"],
        "models/bert-large",
        {"num_layers": 10**12},
        "num_layers = 1000000000000: input should be less than or equal to 4096",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments", "file", "change", "sentence"), CASES)
def test_a_dry_run_plans_or_says_one_sentence(
    tmp_path: Path,
    command: str,
    arguments: list[str],
    file: str,
    change: Change,
    sentence: str | None,
) -> None:
    content = yaml.safe_load((CONFIG / f"{file}.yaml").read_text(encoding="utf-8"))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content | change), encoding="utf-8")
    program, *rest = (a.replace("FILE", "mine.yaml") for a in arguments)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert "Traceback" not in done.stdout
    if sentence is None:
        assert done.returncode == 0, done.stdout
        return
    assert done.returncode == (1 if command == "snakemake" else 2)
    said = [line for line in done.stdout.splitlines() if sentence in line]
    assert len(said) == 1, done.stdout
    if command != "snakemake":  # which names the line of the Snakefile before it
        assert done.stdout.splitlines() == said
