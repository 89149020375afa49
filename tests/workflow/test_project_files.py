"""Citation, changelog, licence and hooks agree with the project that they describe."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from snakemake_runs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
HEADINGS = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
HOOKS = ROOT / ".pre-commit-config.yaml"


@pytest.mark.parametrize(
    "key", ["cff-version", "message", "title", "authors", "version", "license"]
)
def test_citation_has(key: str) -> None:
    assert CITATION[key]


def test_citation_agrees_with_the_project() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert str(CITATION["version"]) == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["type"] == "software"
    assert [author["name"] for author in CITATION["authors"]] == ["The CONA-bench authors"]


def test_the_newest_version_of_the_changelog_is_the_projects() -> None:
    unreleased, *released = HEADINGS
    assert unreleased == "[Unreleased]"
    matches = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\S+)", heading) for heading in released]
    versions = [match[1] for match in matches if match]
    dates = [datetime.date.fromisoformat(match[2]) for match in matches if match]
    assert len(versions) == len(released)
    assert versions[0] == PROJECT["version"]
    assert dates == sorted(dates, reverse=True)


def test_changes_have_the_headings_of_the_form() -> None:
    kinds = set(re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_licence_is_the_one_named() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_hooks_are_valid_and_fetch_nothing() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(HOOKS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    repos = yaml.safe_load(HOOKS.read_text())["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}
    hooks = [hook for repo in repos for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    for hook in hooks:
        tool = hook["entry"].split()[0]
        assert shutil.which(tool, path=str(Path(sys.executable).parent)), tool


def test_hooks_are_the_checks_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    hooks = yaml.safe_load(HOOKS.read_text())["repos"][0]["hooks"]
    for hook in hooks:
        command = (
            hook["entry"]
            .replace(" --force-exclude", "")
            .replace("ruff format --check", "ruff format --check .")
        )
        assert f"$(BIN)/{command}" in makefile, hook["id"]
