"""A tracking server that is down fails the pipeline last, is seen, and takes nothing with it."""

from __future__ import annotations

import socket

import pytest
from snakemake_runs import Workflow, jobs

pytestmark = pytest.mark.slow


def test_all_stands_without_the_server_and_the_same_command_catches_up(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://me:secret@127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody)
    down = workflow("--cores", "2", tier="smoke")
    results = workflow.folder / "results" / "smoke"
    assert down.returncode == 1
    assert "no run is lost" in down.stdout
    assert "secret" not in down.stdout
    assert len(list(results.glob("*/*/seed0/result.json"))) == 2
    assert {"ttp.md", "planners.md"} <= {p.name for p in (results / "tables").iterdir()}
    assert list((results / "figures").glob("*.png"))
    for path in (workflow.folder / ".snakemake").rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    planned = workflow("--dry-run", "--cores", "1", tier="smoke")
    assert jobs(planned.stdout) == {"track": 1, "all": 1, "total": 2}
    again = workflow("--cores", "2", tier="smoke")
    assert again.returncode == 0, again.stdout
    assert (workflow.folder / "mlflow.db").exists()
    assert "Nothing to be done" in workflow("--cores", "2", tier="smoke").stdout
