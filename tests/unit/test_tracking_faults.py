"""A store that is missing, broken, full or slow is one sentence; a killed import is completed."""

import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from fake_runs import FIXED, eval_line, write_run, write_tier

from cona import tracking
from cona.cli import main
from cona.errors import ConfigError, RunError
from cona.tracking import import_runs
from cona.tracking.entries import PARENT
from cona.tracking.store import BATCH_SIZE, Store, one_sentence
from cona.tracking.uri import database, shown

MODEL = "gpt3-1.3b-proxy"
CALLS = (
    *("create_experiment", "search_runs", "create_run", "delete_run", "log_batch"),
    *("log_artifact", "log_text", "set_terminated"),
)
NO_RUN_IS_LOST = "no run is lost"


@pytest.fixture
def results(tmp_path):
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 100.0)]
    write_run(tmp_path / "results", lines)
    return tmp_path / "results"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return the file of an empty store: creating one takes seconds, a copy none."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    uri = f"sqlite:///{path}"
    with one_sentence(uri):
        Store(uri, "cona/other")
    return path


@pytest.fixture
def uri(tmp_path, template):
    shutil.copy(template, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def content_of(uri: str) -> dict[str, object]:
    """Return all that a store says about runs that stand in it, by name; ids are left out."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("cona/quick")
    runs = client.search_runs([experiment.experiment_id])
    names = {r.info.run_id: r.info.run_name for r in runs}
    content = {}
    for run in runs:
        tags = {k: v for k, v in run.data.tags.items() if k != PARENT}
        parent = names.get(run.data.tags.get(PARENT))
        metrics = {
            name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        files = {a.path for a in client.list_artifacts(run.info.run_id)}
        content[run.info.run_name] = (
            run.info.status,
            parent,
            tags,
            run.data.params,
            metrics,
            files,
        )
    assert len(content) == len(runs)
    return content


# --- stopped at any moment ------------------------------------------------------------------------


class Killed(BaseException):
    """Ends an import as a kill would: nothing that is written after it happens."""


class Countdown:
    """Counts the calls of MLflow's client, and ends the import before one of them."""

    def __init__(self, monkeypatch, last: int | None = None) -> None:
        from mlflow import MlflowClient

        self.count, self._last = 0, last
        for name in CALLS:
            monkeypatch.setattr(MlflowClient, name, self._counted(getattr(MlflowClient, name)))

    def _counted(self, function):
        def call(client, *arguments, **named):
            if self.count == self._last:
                raise Killed
            self.count += 1
            return function(client, *arguments, **named)

        return call


@pytest.mark.fault("MLflow down")
def test_an_import_stopped_before_any_call_is_completed_by_the_next(
    results, uri, template, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        total = Countdown(patch)
        import_runs(results, "quick", uri)
    undisturbed = content_of(uri)
    assert undisturbed.keys() == {f"cona {MODEL}", f"cona seed0 {MODEL}"}
    assert total.count > 15
    for last in range(total.count):
        copy = tmp_path / f"stopped{last}" / "mlflow.db"
        copy.parent.mkdir()
        shutil.copy(template, copy)
        with monkeypatch.context() as patch:
            Countdown(patch, last)
            with pytest.raises(Killed):
                import_runs(results, "quick", f"sqlite:///{copy}")
        import_runs(results, "quick", f"sqlite:///{copy}")
        assert content_of(f"sqlite:///{copy}") == undisturbed, last
        assert import_runs(results, "quick", f"sqlite:///{copy}").num_new == 0


KILL = """
import os, signal, sys
from pathlib import Path
from mlflow import MlflowClient
from cona.tracking import import_runs
def killed(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
MlflowClient.log_text = killed
import_runs(Path(sys.argv[1]), "quick", sys.argv[2])
"""


@pytest.mark.fault("MLflow down")
def test_a_killed_import_leaves_no_lock_and_is_completed(results, uri):
    done = subprocess.run([sys.executable, "-c", KILL, str(results), uri], check=False)
    assert done.returncode == -signal.SIGKILL
    assert import_runs(results, "quick", uri).num_new == 1
    assert content_of(uri)[f"cona seed0 {MODEL}"][0] == "FINISHED"


KILL_IN_CREATION = """
import os, signal, sys
from pathlib import Path
import sqlalchemy
from cona.tracking import import_runs
steps = []
def kill(connection, cursor, statement, *_):
    if statement.startswith("UPDATE alembic_version"):
        steps.append(statement)
        if len(steps) == 20:  # what this step has changed stands, but not that it is done
            os.kill(os.getpid(), signal.SIGKILL)
sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", kill)
import_runs(Path(sys.argv[1]), "quick", sys.argv[2])
"""


@pytest.mark.fault("MLflow down")
def test_an_import_killed_while_it_creates_the_store_is_completed(results, tmp_path):
    """MLflow creates its tables in steps, and cannot go on where it was stopped between two."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    done = subprocess.run([sys.executable, "-c", KILL_IN_CREATION, str(results), uri], check=False)
    assert done.returncode == -signal.SIGKILL
    assert import_runs(results, "quick", uri).num_new == 1
    assert content_of(uri)[f"cona seed0 {MODEL}"][0] == "FINISHED"
    assert {path.name for path in tmp_path.glob("*mlflow.db*")} == {"mlflow.db", "mlflow.db.lock"}


def test_a_running_run_becomes_a_finished_one(tmp_path, uri):
    from test_tracking_states import begin_run

    from cona.lock import Lock

    results = tmp_path / "results"
    folder = begin_run(results)
    with Lock(folder):
        report = import_runs(results, "quick", uri)
        assert report.states == {"RUNNING": 1}
        assert {name: run[0] for name, run in content_of(uri).items()} == {
            f"cona {MODEL}": "RUNNING",
            f"cona seed0 {MODEL}": "RUNNING",
        }
    assert import_runs(results, "quick", uri).states == {"KILLED": 1}
    assert content_of(uri)[f"cona seed0 {MODEL}"][0] == "KILLED"
    write_run(results, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 9.0)], run_key="k")
    assert import_runs(results, "quick", uri).states == {"FINISHED": 1}
    found = content_of(uri)
    assert {run[0] for run in found.values()} == {"FINISHED"}
    assert "reason" not in found[f"cona seed0 {MODEL}"][2]


# --- what MLflow is given -------------------------------------------------------------------------


def test_batches_are_within_mlflow_s_limits_and_numbers_are_finite(tmp_path, uri, monkeypatch):
    from mlflow import MlflowClient

    results = tmp_path / "results"
    write_tier(results, models=(MODEL,), plans=(FIXED[0],))
    write_run(results, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, None)], status="diverged")
    sizes, values = [], []
    log_batch = MlflowClient.log_batch

    def noted(client, run_id, metrics=(), params=(), tags=()):
        sizes.append((len(metrics), len(params), len(tags)))
        values.extend(m.value for m in metrics)
        return log_batch(client, run_id, metrics=metrics, params=params, tags=tags)

    monkeypatch.setattr(MlflowClient, "log_batch", noted)
    import_runs(results, "quick", uri)
    most = [max(column) for column in zip(*sizes, strict=True)]
    assert most[0] == BATCH_SIZE
    assert most[1] <= 100
    assert most[2] <= 100
    assert all(abs(value) < 1e300 for value in values)
    assert content_of(uri)[f"cona seed0 {MODEL}"][0] == "FAILED"


def test_an_import_that_takes_too_long_stops_and_goes_on_later(results, uri, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "LIMIT_S", -1.0)
        with pytest.raises(RunError, match="too slow .* `cona track` goes on"):
            import_runs(results, "quick", uri)
    assert import_runs(results, "quick", uri).num_new == 1


# --- stores that do not work ----------------------------------------------------------------------


def track(results: Path, uri: str) -> str:
    """Return the one line that `cona track` prints about a store that does not work."""
    before = {p: p.read_bytes() for p in results.rglob("*.json*")}
    done = CliRunner().invoke(
        main, ["track", "--tier", "quick", "--out", str(results), "--uri", uri]
    )
    assert done.exit_code in (1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "Traceback" not in line
    assert {p: p.read_bytes() for p in results.rglob("*.json*")} == before
    return line


@pytest.mark.parametrize("start", [0, 5000, 40_000])
@pytest.mark.fault("MLflow down")
def test_a_damaged_database_is_one_sentence(results, uri, start):
    path = database(uri)
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * 8192 + content[start + 8192 :])
    assert "delete it, and `cona track` imports all runs anew" in track(results, uri)


def test_a_torn_database_is_one_sentence(results, uri):
    path = database(uri)
    os.truncate(path, path.stat().st_size - 5000)
    assert NO_RUN_IS_LOST in track(results, uri)


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from cona.cli import main
main(["track", "--tier", "quick", "--out", sys.argv[2], "--uri", sys.argv[3]])
"""


@pytest.mark.fault("disk full")
def test_a_full_disk_is_one_sentence_and_space_completes_the_import(results, uri):
    limit = database(uri).stat().st_size + 8192  # less than what is to be written
    write_tier(results, models=(MODEL,), plans=(FIXED[0],))
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit), str(results), uri],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert NO_RUN_IS_LOST in done.stderr
    import_runs(results, "quick", uri)
    assert {run[0] for run in content_of(uri).values()} == {"FINISHED"}


ABSENT = """
import sys
sys.modules["mlflow"] = None
from cona.cli import main
main(["track", "--tier", "quick", "--out", sys.argv[1]])
"""


def test_mlflow_that_is_not_installed_is_one_sentence(results, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ABSENT, str(results)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "MLflow is not installed" in line
    assert "tables and figures do not need it" in line


def answers(status: int, body: bytes, headers: dict[str, str]) -> type:
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return type("Answers", (Handler,), {"do_GET": Handler.answer, "do_POST": Handler.answer})


@contextlib.contextmanager
def server(status: int, body: bytes, **headers: str):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers(status, body, headers)) as it:
        threading.Thread(target=it.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{it.server_port}"
        it.shutdown()


@pytest.fixture
def impatient(monkeypatch):
    """Wait a second for a server, and once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"<html>Internal Server Error"),
        (503, b"{}"),
        (404, b"not here"),
        (401, b"who are you?"),
        (200, b"<html>a router's login page"),
        (200, b"[]"),
        (200, b'{"experiment": 3}'),
        (200, b"{}"),
        (200, b'"text"'),
    ],
)
@pytest.mark.fault("MLflow down")
def test_a_server_that_fails_is_one_sentence(results, impatient, status, body):
    with server(status, body) as uri:
        assert NO_RUN_IS_LOST in track(results, uri)


def test_a_server_cannot_ask_for_a_day(results, impatient):
    started_s = time.monotonic()
    with server(503, b"{}", **{"Retry-After": "86400"}) as uri:
        assert NO_RUN_IS_LOST in track(results, uri)
    assert time.monotonic() - started_s < 60


@pytest.mark.fault("MLflow down")
def test_a_server_that_is_not_there_or_silent_is_one_sentence(results, impatient):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert NO_RUN_IS_LOST in track(results, uri)  # refused
        listener.listen()
        started_s = time.monotonic()
        assert NO_RUN_IS_LOST in track(results, uri)  # accepted, and never answered
    assert time.monotonic() - started_s < 60


def test_patience_has_limits_unless_the_user_sets_others(monkeypatch):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    with one_sentence("sqlite:///x.db"):
        assert int(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) <= 30
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"


def test_no_password_is_shown(results, impatient):
    assert shown("postgresql://me:secret@host/db") == "postgresql://***@host/db"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = track(results, f"http://me:secret@127.0.0.1:{port}")
    assert "secret" not in line
    assert f"http://***@127.0.0.1:{port}" in line
    with pytest.raises(ConfigError) as refused:
        import_runs(results, "quick", "ftp://me:secret@host")
    assert "secret" not in str(refused.value)


def test_the_environment_names_the_store(results, monkeypatch, tmp_path):
    seen = SimpleNamespace(uri="")

    def noted(results, tier, uri):
        seen.uri = uri
        return tracking.ImportReport(num_new=1, num_known=2, states={"FINISHED": 2, "KILLED": 1})

    monkeypatch.setattr(tracking, "import_runs", noted)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@tracker:5000")
    done = CliRunner().invoke(main, ["track", "--tier", "quick", "--out", str(results)])
    assert seen.uri == "http://me:secret@tracker:5000"
    assert done.stdout == (
        "http://***@tracker:5000: 1 runs imported, 2 known; 2 finished, 1 killed\n"
    )
