"""Hostile names of folders, files, texts and models, through Snakemake: words, or one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from snakemake_runs import ROOT, Workflow, jobs

NASTY = "a b; touch pwned $(touch pwned) `touch pwned` \"'&|>x"
"""A folder's name that a shell would take for commands."""
SMOKE = yaml.safe_load((ROOT / "config" / "tiers" / "smoke.yaml").read_text(encoding="utf-8"))


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 1
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout
    assert "Job stats" not in done.stdout


@pytest.fixture
def here(tmp_path: Path) -> Workflow:
    return Workflow(tmp_path)


def test_nasty_folders_files_and_texts_are_words(here: Workflow) -> None:
    (here.folder / f"{NASTY}.yaml").write_text(yaml.safe_dump({**SMOKE, "name": "mine"}))
    (here.folder / f"{NASTY}.txt").write_text("some words")
    settings = {"tier": f"{NASTY}.yaml", "results": NASTY, "data": f"text:{NASTY}.txt"}
    planned = here("--dry-run", "--cores", "1", **settings)
    assert planned.returncode == 0, planned.stdout
    assert jobs(planned.stdout)["train_policies"] == 1
    # of all jobs the only one that needs no run: its line goes through a shell
    done = here("--cores", "1", "--until", "planners", **settings)
    assert done.returncode == 0, done.stdout
    assert (here.folder / NASTY / "mine" / "tables" / "planners.csv").is_file()
    assert not list(here.folder.rglob("pwned"))


@pytest.mark.parametrize("results", ["x{model}", "x}"])
def test_a_results_folder_that_snakemake_would_misread_is_one_sentence(
    here: Workflow, results: str
) -> None:
    refused(here("--dry-run", "--cores", "1", results=results), "a folder without braces")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "x; touch pwned"}, "name = 'x; touch pwned'"),
        ({"name": "../mine"}, "name = '../mine'"),
        ({"models": ["x; touch pwned.yaml"]}, "models.0 = 'x; touch pwned.yaml'"),
        ({"models": ["../gpt3-1.3b-proxy.yaml"]}, "models.0 = '../gpt3-1.3b-proxy.yaml'"),
        ({"policies": ["cona; touch pwned"]}, "unknown policy 'cona; touch pwned'"),
        ({"cluster": "$(touch pwned)"}, "unknown cluster '$(touch pwned)'"),
    ],
)
def test_a_hostile_name_in_a_tier_is_one_sentence(
    here: Workflow, changes: dict[str, object], sentence: str
) -> None:
    model = (ROOT / "config" / "models" / "gpt3-1.3b-proxy.yaml").read_text(encoding="utf-8")
    (here.folder / "x; touch pwned.yaml").write_text(model)
    (here.folder / "mine.yaml").write_text(yaml.safe_dump({**SMOKE, "name": "mine", **changes}))
    refused(here("--dry-run", "--cores", "1", tier="mine.yaml"), sentence)
    assert not (here.folder / "pwned").exists()
