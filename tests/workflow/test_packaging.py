"""The lock agrees with pyproject.toml, and the Makefile explains what it can do."""

import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from snakemake_runs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["bo"]]
LOCK = {
    canonicalize_name(requirement.name): requirement
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#") and (requirement := Requirement(line))
}


def locked_version(requirement: Requirement) -> Version:
    (pin,) = requirement.specifier
    assert pin.operator == "=="
    return Version(pin.version)


@pytest.mark.parametrize("line", NEEDED)
def test_lock_pins_every_dependency_within_its_bounds(line: str) -> None:
    needed = Requirement(line)
    version = locked_version(LOCK[canonicalize_name(needed.name)])
    assert needed.specifier.contains(version)


def test_lock_pins_exact_public_versions() -> None:
    versions = [locked_version(requirement) for requirement in LOCK.values()]
    assert len(versions) > 100
    assert all(version.local is None for version in versions)
    assert canonicalize_name(PROJECT["name"]) not in LOCK


def test_make_lists_its_targets() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert {"install", "reproduce", "test", "check", "clean", "lock"} <= targets


@pytest.mark.parametrize("python", ["false", "no-such-python"])
def test_make_names_the_python_that_it_needs(python: str, tmp_path) -> None:
    """VENV is elsewhere: the checkout's own environment stays as it is."""
    command = ["make", "install", f"PYTHON={python}", f"VENV={tmp_path}/venv"]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode != 0
    assert f"PYTHON='{python}': need Python 3.11 or 3.12" in failed.stderr
    assert not (tmp_path / "venv").exists()
