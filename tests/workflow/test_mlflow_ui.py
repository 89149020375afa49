"""`make ui` and its pages in a headless browser; a tracking server that hangs, dies and returns.

The server of each part is MLflow's own, as a process; imports go through the command line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from snakemake_runs import ROOT

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from fake_runs import CONA, FIXED, write_tier

pytestmark = pytest.mark.slow

MODEL = "gpt3-1.3b-proxy"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
START_S = 180.0
"""How long a server may take to start on a busy machine."""


def cona_track(results: Path, uri: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["-c", "from cona.cli import main; main()", "track", "--tier", "quick"]
    return subprocess.run(
        [sys.executable, *command, "--out", str(results)],
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, **environment},
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of two policies and two seeds."""
    path = tmp_path_factory.mktemp("ui")
    write_tier(path / "results", models=(MODEL,), plans=(CONA, FIXED[3]), seeds=(0, 1))
    return path


@dataclass(frozen=True)
class Server:
    """An MLflow server in a process group of its own."""

    process: subprocess.Popen[bytes]
    url: str

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def addresses(self) -> set[str]:
        """Return where it listens."""
        family = psutil.Process(self.process.pid)
        found = [c for p in [family, *family.children(recursive=True)] for c in p.net_connections()]
        return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def ui_command(port: int) -> str:
    """Return what `make ui` runs, with the programs of this test's environment."""
    done = subprocess.run(
        ["make", "--dry-run", "ui", f"PORT={port}"], cwd=ROOT, capture_output=True, text=True
    )
    recipe = done.stdout.replace("\\\n", " ")
    (line,) = [line for line in recipe.splitlines() if "mlflow server" in line]
    return re.sub(r"\S*bin/mlflow", f"exec {Path(sys.executable).parent}/mlflow", line)


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """Run `make ui` in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / f"server-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", ui_command(port)],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        wait_for(server)
        yield server
    finally:
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)
        process.wait()


def wait_for(server: Server) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and server.process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{server.url}/health", timeout=5) as reply:
            if reply.status == 200:
                return
        time.sleep(0.5)
    pytest.fail(f"no server at {server.url}")


# --- pages ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        reason = "NO BROWSER: the MLflow pages were not looked at; install chromium"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def ui(folder: Path) -> Iterator[Server]:
    done = cona_track(folder / "results", f"sqlite:///{folder / 'mlflow.db'}")
    assert done.returncode == 0, done.stderr
    with serve(folder) as server:
        yield server


def page(browser: str, url: str, folder: Path, *wanted: str) -> str:
    """Return a page's text when all wanted words are in it; a busy machine gets more time."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'chrome'}",
    ]
    text = ""
    for budget_s in (10, 40, 90):
        budget = f"--virtual-time-budget={budget_s * 1000}"
        command = [browser, *options, "--window-size=1600,1400", budget, "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        text = " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", done.stdout).split())
        if all(word in text for word in wanted):
            return text
    pytest.fail(f"{[w for w in wanted if w not in text]} not in: {text[-3000:]}")


def api(server: Server, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{server.url}/api/2.0/mlflow/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def runs(server: Server, level: str) -> dict[str, dict[str, Any]]:
    """Return the runs of a level by name."""
    (experiment,) = [
        e["experiment_id"]
        for e in api(server, "experiments/search", max_results=10)["experiments"]
        if e["name"] == "cona/quick"
    ]
    filtered = f"tags.level = '{level}'"
    found = api(server, "runs/search", experiment_ids=[experiment], filter=filtered)
    return {run["info"]["run_name"]: run for run in found.get("runs", [])}


def test_the_runs_page_lists_policies(ui: Server, browser: str, folder: Path) -> None:
    policies = runs(ui, "policy")
    assert policies.keys() == {f"cona {MODEL}", f"fixed-best-gbs64 {MODEL}"}
    experiment = next(iter(policies.values()))["info"]["experiment_id"]
    page(browser, f"{ui.url}/#/experiments/{experiment}/runs", folder, *policies)


def test_the_compare_page_shows_names_metrics_and_tags(
    ui: Server, browser: str, folder: Path
) -> None:
    seeds = runs(ui, "seed")
    assert len(seeds) == 4
    ids = quote(json.dumps([run["info"]["run_id"] for run in seeds.values()]))
    experiment = quote(json.dumps([next(iter(seeds.values()))["info"]["experiment_id"]]))
    url = f"{ui.url}/#/compare-runs?runs={ids}&experiments={experiment}"
    wanted = ("ppl", "gns_over_clock_ms", "final_ppl", "loss", "run_key", "decisions.jsonl")
    page(browser, url, folder, *seeds, *wanted)


def test_curves_of_all_policies_overlay(ui: Server, browser: str, folder: Path) -> None:
    seeds = runs(ui, "seed")
    ids = quote(json.dumps([run["info"]["run_id"] for run in seeds.values()]))
    experiment = quote(json.dumps([next(iter(seeds.values()))["info"]["experiment_id"]]))
    metric, metrics = quote('"ppl"'), quote('["ppl"]')
    plot = f"metric={metric}&plot_metric_keys={metrics}&x_axis=relative"
    url = f"{ui.url}/#/metric?runs={ids}&experiments={experiment}&{plot}"
    page(browser, url, folder, *(f"{name} (ppl)" for name in seeds))


def test_the_ui_is_on_loopback_only(ui: Server) -> None:
    assert ui.addresses() == {"127.0.0.1"}


# --- a remote server ------------------------------------------------------------------------------


def test_a_server_that_hangs_dies_and_returns_gets_every_run_once(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "results", tmp_path / "results")
    results, quick = tmp_path / "results", tmp_path / "results" / "quick" / MODEL
    later = quick / "cona" / "seed1"
    later.rename(tmp_path / "later")
    impatient = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    with serve(tmp_path) as server:
        first = cona_track(results, server.url)
        assert first.returncode == 0, first.stderr
        assert first.stdout == f"{server.url}: 3 runs imported, 0 known; 3 finished\n"
        (tmp_path / "later").rename(later)
        server.signal(signal.SIGSTOP)
        started_s = time.monotonic()
        refused(cona_track(results, server.url, **impatient))
        assert time.monotonic() - started_s < 120
        server.signal(signal.SIGCONT)
        second = cona_track(results, server.url)
        assert second.stdout == f"{server.url}: 1 runs imported, 3 known; 4 finished\n"
        seeds, policies = runs(server, "seed"), runs(server, "policy")
        assert len(seeds) == 4
        for seed in seeds.values():
            tags = {tag["key"]: tag["value"] for tag in seed["data"]["tags"]}
            parent = policies[f"{tags['policy']} {MODEL}"]
            assert tags["mlflow.parentRunId"] == parent["info"]["run_id"]
    refused(cona_track(results, server.url, **impatient))  # by now it is gone


def refused(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a store that does not work was one sentence."""
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no run is lost" in line
