"""Import of finished runs into MLflow: a single writer, idempotent, in batches.

The run directories are the truth (docs/results-format.md); the database is a view of them that can
be deleted and imported again. MLflow is loaded only when there is something to import.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cona.analysis.flat import labels, parameters, points, ttp_labels
from cona.analysis.load import Run, load_runs
from cona.analysis.ttp import Ttp, ttp_rows
from cona.errors import ConfigError, RunError

BATCH_SIZE = 1000
"""Most metrics in one write; MLflow's limit."""
TAG_BATCH_SIZE = 100
"""Most tags in one write; MLflow's limit."""
LOCK_TIMEOUT_S = 600.0
"""How long to wait for another import."""
DEFAULT_URI = "sqlite:///mlflow.db"
SUPERSEDED = "superseded"
"""Tag of a run in whose place another one with other settings stands by now."""
COMPLETE = "imported_sha256"
"""Tag set last, to the checksum of metrics.jsonl: without it an import stopped half way."""
_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
_SQLITE = "sqlite:///"
_ARTIFACTS = ("run.json", "result.json", "metrics.jsonl")


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import did, counted in runs."""

    num_new: int
    """Imported now."""
    num_known: int
    """Already there, with the same content."""
    num_failed: int
    """Diverged runs among the new ones: imported with MLflow's status FAILED."""
    num_unfinished: int = 0
    """Run directories without result.json, skipped."""


def import_runs(results: Path, tier: str, uri: str = DEFAULT_URI) -> ImportReport:
    """Import every finished run of a tier into the experiment ``cona/<tier>``.

    A run that is already there is left alone; one that was imported half way, or that has other
    content by now, is deleted and imported anew.

    Args:
        results: root of the results.
        tier: name of the tier.
        uri: MLflow tracking URI; artifacts of a SQLite store lie in ``mlartifacts/`` beside it.

    Raises:
        ConfigError: the URI names a store that MLflow cannot write to.
        RunError: there is no finished run, or another import holds the store for too long.
    """
    _check(uri)
    runs = load_runs(results, tier)
    num_dirs = len(list((results / tier).glob("*/*/seed*/")))
    rows = _rows_by_run(runs)
    with _only_writer(results / tier, uri):
        store = _opened(uri, f"cona/{tier}")
        new = [run for run in _progress(runs) if store.add(run, rows[run.name])]
    return ImportReport(
        num_new=len(new),
        num_known=len(runs) - len(new),
        num_failed=sum(_status(run) == "FAILED" for run in new),
        num_unfinished=num_dirs - len(runs),
    )


def _opened(uri: str, experiment: str) -> _Store:
    from mlflow.exceptions import MlflowException

    try:
        return _Store(uri, experiment)
    except (ImportError, MlflowException) as error:  # no driver, no server, or no access
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tracking URI '{uri}': {reason}; valid: {DEFAULT_URI}") from error


class _Store:
    """One experiment of an MLflow store."""

    def __init__(self, uri: str, experiment: str) -> None:
        self._client = _client(uri)
        self._experiment_id = self._open(uri, experiment)
        self._known = self._runs_by_key()

    def add(self, run: Run, rows: Sequence[Ttp]) -> bool:
        """Import a run; returns False if it is already there."""
        reached = ttp_labels(rows)
        complete = None
        for known in self._known.get(run.result["run_key"], []):
            if complete is None and known.data.tags.get(COMPLETE) == run.result["metrics_sha256"]:
                complete = known
            else:
                self._client.delete_run(known.info.run_id)
        if complete is None:
            self._import(run, rows, reached)
            self._mark_superseded(run)
            return True
        # other runs may have reached harder targets since: new rows of the ladder
        missing = {k: v for k, v in reached.items() if complete.data.tags.get(k) != v}
        self._tag(complete.info.run_id, missing)
        return False

    def _mark_superseded(self, new: Run) -> None:
        """Tag the runs of the same name that other settings made."""
        for key, runs in self._known.items():
            for run in runs:
                if run.info.run_name == new.name and key != new.result["run_key"]:
                    self._tag(run.info.run_id, {SUPERSEDED: "yes"})

    def _import(self, run: Run, rows: Sequence[Ttp], reached: dict[str, str]) -> None:
        end_ms = int((run.path / "result.json").stat().st_mtime * 1000)
        start_ms = end_ms - round(float(run.result["train_s"]) * 1000)
        created = self._client.create_run(
            self._experiment_id,
            start_time=start_ms,
            tags={"run_key": run.result["run_key"]},
            run_name=run.name,
        )
        run_id = created.info.run_id
        self._log_parameters(run_id, run)
        self._log_points(run_id, run, rows, start_ms)
        for name in _ARTIFACTS:
            if (path := run.path / name).exists():
                self._client.log_artifact(run_id, str(path))
        self._tag(run_id, labels(run) | reached)
        self._client.set_terminated(run_id, _status(run), end_time=end_ms)
        self._tag(run_id, {COMPLETE: run.result["metrics_sha256"]})

    def _log_parameters(self, run_id: str, run: Run) -> None:
        from mlflow.entities import Param

        chosen = [Param(key, value) for key, value in parameters(run).items()]
        self._client.log_batch(run_id, params=chosen)

    def _log_points(self, run_id: str, run: Run, rows: Sequence[Ttp], start_ms: int) -> None:
        from mlflow.entities import Metric

        # timestamps follow the train clock, so MLflow's relative time axis is the clock
        metrics = [
            Metric(p.name, p.value, start_ms + round(p.train_s * 1000), p.step)
            for p in points(run, rows)
        ]
        for batch in _batches(metrics, BATCH_SIZE):
            self._client.log_batch(run_id, metrics=batch)

    def _tag(self, run_id: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        for batch in _batches([RunTag(k, v) for k, v in tags.items()], TAG_BATCH_SIZE):
            self._client.log_batch(run_id, tags=batch)

    def _open(self, uri: str, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            folder = None
            if database := _database(uri):
                folder = (database.parent / "mlartifacts" / name).resolve().as_uri()
            return str(self._client.create_experiment(name, artifact_location=folder))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _runs_by_key(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        token = None
        while True:
            page = self._client.search_runs([self._experiment_id], page_token=token)
            for run in page:
                found.setdefault(run.data.tags.get("run_key", ""), []).append(run)
            token = page.token
            if not token:
                return found


def _client(uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # they announce every table that they create
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _check(uri: str) -> None:
    scheme = uri.partition(":")[0] if ":" in uri else ""
    if scheme not in _SCHEMES or (scheme == "sqlite" and _database(uri) is None):
        raise ConfigError(
            f"tracking URI '{uri}': not a database or a server; valid: {DEFAULT_URI}, "
            "or http://host:port of an MLflow server"
        )


def _database(uri: str) -> Path | None:
    path = uri.removeprefix(_SQLITE)
    return Path(path) if path and path != uri else None


@contextmanager
def _only_writer(folder: Path, uri: str) -> Iterator[None]:
    """Hold the store's lock: concurrent first use of a SQLite store corrupts it."""
    from filelock import FileLock, Timeout

    database = _database(uri) or folder / "mlflow"
    database.parent.mkdir(parents=True, exist_ok=True)
    path = database.with_name(f"{database.name}.lock")
    try:
        with FileLock(path, timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout as error:
        raise RunError(
            f"{path}: another import has held the store for {LOCK_TIMEOUT_S:.0f} s; wait for it"
        ) from error


def _rows_by_run(runs: Sequence[Run]) -> dict[str, list[Ttp]]:
    rows: dict[str, list[Ttp]] = {run.name: [] for run in runs}
    for row in ttp_rows(runs):
        rows[row.run.name].append(row)
    return rows


def _status(run: Run) -> str:
    return "FAILED" if run.result["status"] == "diverged" else "FINISHED"


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _progress(runs: Sequence[Run]) -> Iterator[Run]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    yield from track(
        runs, description="MLflow import", console=console, disable=hidden, transient=True
    )
