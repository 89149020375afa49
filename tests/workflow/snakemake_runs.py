"""Runs Snakemake on this repository's workflow in a working directory of the test's own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Workflow:
    """The workflow, with results, logs and the MLflow store in one folder."""

    folder: Path

    def __call__(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake; settings become `--config`."""
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        pairs = [f"{key}={value}" for key, value in settings.items()]
        return subprocess.run(
            [*command, "--directory", str(self.folder), *arguments, "--config", *pairs],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def jobs(output: str) -> dict[str, int]:
    """Return how many jobs of each rule a Snakemake run planned: the first table it printed."""
    table = output.partition("Job stats:")[2].strip().split("\n\n")[0]
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}
