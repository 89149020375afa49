"""Every command of README and tour runs on the smoke tier, with fewer ranks and seconds if long."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from snakemake_runs import ROOT

from cona.cli import COMMANDS as COMMANDS_OF_CONA

README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs/tour.md").read_text()
GUIDE = (ROOT / "docs/extend/policy.md").read_text()
COMMANDS = [
    re.split(r"\s{2,}#|\s#\s", line)[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README + TOUR, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
TRAINING = [c for c in COMMANDS if c.startswith(("cona", "snakemake"))]
MAKE = [c for c in COMMANDS if c.startswith("make")] + re.findall(r"`(make [a-z-]+)`", README)


SHORTER = {
    "--tier quick": "--tier smoke",
    "selftest --nproc 4": "selftest --nproc 2 --family gpt",
    "budget.seconds=60": "budget.seconds=3",
}
"""What CI runs instead; the long forms are in tests/distributed."""
EXAMPLES = {"baselines/half_time.py"}
"""Files that the README asks the reader to write."""
NAMED_FILES = [
    path
    for path in re.findall(r"`((?:cona|config|baselines|docs|tests)/[\w./-]+\.\w+)`", README + TOUR)
    if path not in EXAMPLES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one empty folder in which the commands follow each other, as a reader types them.

    First those of the README, then those of the tour.
    """
    return tmp_path_factory.mktemp("reader")


def test_nothing_is_left_out() -> None:
    others = set(COMMANDS) - set(TRAINING) - set(MAKE)
    assert others == {"source .venv/bin/activate"}
    assert {"make reproduce", "make test", "make ui", "make help"} <= set(MAKE)


@pytest.mark.parametrize("command", TRAINING)
def test_command(folder: Path, command: str) -> None:
    for long, short in SHORTER.items():
        command = command.replace(long, short)
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


def test_the_example_policy_is_that_of_the_guide() -> None:
    """test_extension_guides.py runs it."""
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = [textwrap.dedent(code) for code in examples if "class HalfTime" in code]
    assert f'```python title="baselines/half_time.py"\n{code}```' in GUIDE


@pytest.mark.parametrize("command", sorted(set(MAKE)))
def test_make_target_exists(command: str) -> None:
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NAMED_FILES)
def test_named_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    assert (ROOT / path).exists()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [command.name for command in COMMANDS_OF_CONA])
def test_every_command_is_named(name: str) -> None:
    assert re.search(rf"\bcona {name}\b|also:[^\n]*\b{name}\b", README)
