"""The smoke tier end to end: trained once, then asked again, damaged, and repaired.

The tests of this module build on each other, in order.
"""

import csv
import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from snakemake_runs import Workflow, jobs

MODEL = "gpt3-1.3b-proxy"
POLICIES = ("cona", "fixed-best-gbs8")


@pytest.fixture(scope="module")
def results(workflow: Workflow) -> Path:
    done = workflow("--cores", "2", tier="smoke")
    assert done.returncode == 0, done.stdout
    return workflow.folder / "results" / "smoke"


def result_of(results: Path, policy: str) -> Path:
    return results / MODEL / policy / "seed0" / "result.json"


def written_ns(results: Path) -> dict[Path, int]:
    """When each file was written, trajectories and runs included."""
    files = (p for p in results.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {path.relative_to(results): path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_run_learned_something(results: Path, policy: str) -> None:
    result = json.loads(result_of(results, policy).read_text())
    assert result["status"] == "finished"
    lines = (results / MODEL / policy / "seed0" / "metrics.jsonl").read_text().splitlines()
    ppl = [r["ppl"] for r in map(json.loads, lines) if r["kind"] == "eval"]
    assert len(ppl) > 2
    assert ppl[-1] == result["ppl"] < 0.8 * ppl[0]


def test_tables_hold_every_policy(results: Path) -> None:
    with (results / "tables" / "ttp.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == set(POLICIES)
    assert {row["model"] for row in rows} == {MODEL}
    markdown = (results / "tables" / "ttp.md").read_text()
    assert all(policy in markdown for policy in POLICIES)
    assert "modelled" in markdown


def test_four_figures_as_png_and_pdf(results: Path) -> None:
    png = {path.stem for path in (results / "figures").glob("*.png")}
    pdf = {path.stem for path in (results / "figures").glob("*.pdf")}
    assert len(png) >= 4
    assert png == pdf
    for path in (results / "figures").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def mlflow_runs(folder: Path) -> Counter[tuple[str, str]]:
    """Count the store's runs by what they stand for and their status."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        rows = store.execute(
            "SELECT tags.value, runs.status FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid "
            "WHERE tags.key = 'level' AND runs.lifecycle_stage = 'active'"
        )
        return Counter(map(tuple, rows))


TRACKED = {
    ("seed", "FINISHED"): len(POLICIES),
    ("policy", "FINISHED"): len(POLICIES),
    ("report", "FINISHED"): 1,
}


def test_mlflow_holds_every_seed_below_its_policy_and_the_report(
    results: Path, workflow: Workflow
) -> None:
    assert mlflow_runs(workflow.folder) == TRACKED


def test_again_does_nothing_and_says_so(results: Path, workflow: Workflow) -> None:
    before = written_ns(results)
    again = workflow("--cores", "2", tier="smoke")
    assert again.returncode == 0, again.stdout
    assert "Nothing to be done" in again.stdout
    assert written_ns(results) == before


def test_a_deleted_policy_comes_back_and_only_that(results: Path, workflow: Workflow) -> None:
    kept, deleted = POLICIES
    old = result_of(results, deleted).read_bytes()
    log = (results / MODEL / deleted / "seed0" / "metrics.jsonl").read_bytes()
    before = written_ns(results)
    shutil.rmtree(results / MODEL / deleted)
    repaired = workflow("--cores", "2", tier="smoke")
    assert repaired.returncode == 0, repaired.stdout
    assert jobs(repaired.stdout) == {
        "train_policies": 1,
        "tables": 1,
        "figures": 1,
        "report": 1,
        "track": 1,
        "all": 1,
        "total": 6,
    }
    assert f"{MODEL}/{kept}/seed0" in repaired.stdout
    assert repaired.stdout.count("(was finished: skipped)") == 1
    assert result_of(results, deleted).read_bytes() == old
    assert (results / MODEL / deleted / "seed0" / "metrics.jsonl").read_bytes() == log
    after = written_ns(results)
    changed = {path.parts[0] for path in after if after[path] != before.get(path)}
    untouched = Path(MODEL) / kept / "seed0" / "metrics.jsonl"
    assert changed <= {"tables", "figures", "report.html", MODEL}
    assert after[untouched] == before[untouched]
    assert mlflow_runs(workflow.folder) == TRACKED
    assert "Nothing to be done" in workflow("--cores", "2", tier="smoke").stdout


def test_a_deleted_store_is_filled_again(results: Path, workflow: Workflow) -> None:
    (workflow.folder / "mlflow.db").unlink()
    filled = workflow("--cores", "2", tier="smoke")
    assert jobs(filled.stdout) == {"track": 1, "all": 1, "total": 2}
    assert mlflow_runs(workflow.folder) == TRACKED


def test_results_of_one_text_do_not_pass_for_those_of_another(
    results: Path, workflow: Workflow, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    planned = workflow("--dry-run", "--cores", "1", tier="smoke", data=f"text:{text}")
    assert planned.returncode == 0, planned.stdout
    assert {"data", "train_policies", "tables", "figures", "track"} <= set(jobs(planned.stdout))
