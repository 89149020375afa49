"""Every command of the README runs (on the smoke tier where it names a longer one)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake_runs import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [
    re.split(r"\s{2,}#|\s#\s", line)[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
TRAINING = [c for c in COMMANDS if c.startswith(("cona", "snakemake"))]
MAKE = [c for c in COMMANDS if c.startswith("make")] + re.findall(r"`(make [a-z-]+)`", README)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one empty folder in which the commands follow each other, as a reader types them."""
    return tmp_path_factory.mktemp("reader")


def test_nothing_is_left_out() -> None:
    others = set(COMMANDS) - set(TRAINING) - set(MAKE)
    assert others == {"source .venv/bin/activate"}
    assert {"make reproduce", "make test", "make ui", "make help"} <= set(MAKE)


@pytest.mark.parametrize("command", TRAINING)
def test_command(folder: Path, command: str) -> None:
    command = command.replace("--tier quick", "--tier smoke")
    if command.startswith("snakemake"):
        # In the reader's checkout the Snakefile is at hand and results lie beside it.
        where = f"--snakefile {ROOT / 'Snakefile'} --directory {folder}"
        command = command.replace("snakemake", f"snakemake {where}", 1)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", sorted(set(MAKE)))
def test_make_target_exists(command: str) -> None:
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", re.findall(r"`((?:config|baselines|docs)/[\w./-]+\.\w+)`", README))
def test_named_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
