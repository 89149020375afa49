"""A real MLflow server that is down, killed during an import, and up again: every run, once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from fake_runs import CONA, FIXED, write_tier

CONA_COMMAND = str(Path(sys.executable).parent / "cona")
MODEL = "bert-large-proxy"
QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_up(uri: str) -> bool:
    try:
        with urlopen(f"{uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a store in a folder; at the end nothing of the server is left."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.txt").open("ab") as said:
        process = subprocess.Popen(
            command, env=os.environ | QUIET, stdout=said, stderr=said, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + 180
        while not is_up(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, (folder / "server.txt").read_text()
            assert time.monotonic() < deadline_s, (folder / "server.txt").read_text()
            time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait()


def track(folder: Path, port: int) -> subprocess.Popen[str]:
    """Start an import."""
    command = [CONA_COMMAND, "track", "--tier", "quick", "--out", str(folder / "results")]
    return subprocess.Popen(
        [*command, "--uri", f"http://127.0.0.1:{port}"],
        env=os.environ | IMPATIENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(process: subprocess.Popen[str]) -> None:
    """Check that an import ends with one sentence."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1, output
    (sentence,) = errors.strip().splitlines()
    assert sentence.startswith("Error: MLflow store http://127.0.0.1:")
    assert "no run is lost" in sentence


@pytest.mark.slow
@pytest.mark.fault("MLflow down")
def test_a_server_that_comes_and_goes_has_every_run_once_in_the_end(tmp_path: Path) -> None:
    plans = (CONA, *FIXED)
    write_tier(tmp_path / "results", models=(MODEL,), plans=plans)
    before = {p: p.read_bytes() for p in (tmp_path / "results").rglob("*") if p.is_file()}
    port = free_port()
    refused(track(tmp_path, port))
    with server(tmp_path, port) as process:
        importing = track(tmp_path, port)
        log, deadline_s = tmp_path / "server.txt", time.monotonic() + 180
        while b"/runs/create" not in log.read_bytes() and importing.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        refused(importing)
    with server(tmp_path, port):
        output, errors = track(tmp_path, port).communicate(timeout=300)
        assert f"{len(plans)} finished" in output, errors
        again, _ = track(tmp_path, port).communicate(timeout=300)
        assert f": 0 runs imported, {len(plans)} known" in again
    assert names_in(tmp_path) == sorted(f"{plan.policy} seed0 {MODEL}" for plan in plans)
    after = {p: p.read_bytes() for p in (tmp_path / "results").rglob("*") if p.is_file()}
    assert {path: after[path] for path in before} == before


def names_in(folder: Path) -> list[str]:
    """Return the names of the runs of a seed that stand in the store of a folder."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cona/quick")
    runs = client.search_runs([experiment.experiment_id])
    return sorted(run.info.run_name for run in runs if " seed0 " in run.info.run_name)
