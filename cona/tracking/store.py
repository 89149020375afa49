"""One experiment of an MLflow store: finds, adds and corrects its runs."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from cona.errors import ConfigError, RunError
from cona.storage import discard
from cona.tracking import uri as uris
from cona.tracking.entry import Entry

BATCH_SIZE = 1000
"""Most metrics in one write; MLflow's limit."""
SMALL_BATCH_SIZE = 100
"""Most tags or parameters in one write; MLflow's limit."""
SUPERSEDED = "superseded"
"""Tag of a run in whose place another one with other settings stands by now."""
COMPLETE = "imported"
"""Tag set last, to what the entry's content was: without it an import stopped half way."""
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # ASSUMED: a server that is silent for so long, three times, is not going to answer. MLflow's
    # own settings add up to a quarter of an hour a request, and let a server ask for any pause.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}
"""What MLflow is told unless the user has."""


@contextmanager
def one_sentence(uri: str) -> Iterator[None]:
    """Turn whatever goes wrong in MLflow into one sentence.

    Args:
        uri: the store.

    Raises:
        ConfigError: MLflow, or what it needs for this kind of store, is not installed.
        RunError: the store is damaged, full or locked, or the server fails or does not answer.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow  # noqa: F401 - whether it is there
        from google.protobuf.json_format import Error as FormatError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise ConfigError(
            f"MLflow is not installed ({error}); install it with `pip install mlflow`, or do "
            "without: tables and figures do not need it"
        ) from error
    # They announce every table that they create, every retry and every error.
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    except ImportError as error:  # of a database's driver
        raise ConfigError(
            f"tracking URI '{uris.shown(uri)}': {_reason(error)}; valid: {uris.DEFAULT}"
        ) from error
    except (MlflowException, SQLAlchemyError, FormatError, OSError) as error:
        raise RunError(
            f"MLflow store {uris.shown(uri)}: {_reason(error)}; no run is lost: once the store "
            "works again, `cona track` goes on"
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first line of what went wrong, without passwords."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return uris.shown(re.sub(r"\(Background on this error at.*", "", line)[:300])


def check_database(uri: str) -> None:
    """Raise RunError if a SQLite store is damaged: MLflow may not notice."""
    path = uris.database(uri)
    if path is None or not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # locked, say: MLflow will meet it, too
        return
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise RunError(
            f"{path}: damaged ({found}); no run is lost: delete it, and `cona track` imports all "
            "runs anew"
        )


def create_database(uri: str) -> None:
    """Create a SQLite store if it is missing: whole or not at all, as MLflow cannot complete it."""
    from mlflow import MlflowClient

    path = uris.database(uri)
    if path is None or path.exists():
        return
    draft = path.with_name(f".{path.name}.draft")
    for left in (draft, draft.with_name(f"{draft.name}-journal")):
        discard(left)  # of an import that was killed here
    MlflowClient(tracking_uri=uris.sqlite(draft)).search_experiments(max_results=1)
    draft.replace(path)


class Store:
    """One experiment of an MLflow store, with what stands in it.

    Args:
        uri: MLflow tracking URI.
        experiment: name; the experiment is created if it is missing.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._experiment_id = self._open(uri, experiment)
        if not self._experiment_id:  # an empty answer passes for an experiment
            raise RunError(
                f"MLflow store {uris.shown(uri)}: answers, but is no MLflow server; no run is lost"
            )
        self._known = self._runs_by_key()

    def put(self, entry: Entry, **tags: str) -> tuple[str, bool]:
        """Bring a run up to date.

        One that is there is left alone but for tags that differ; one that was imported half way,
        or that has other content by now, is deleted and imported anew.

        Args:
            entry: what the run is.
            tags: more of its tags, which win.

        Returns:
            Its id, and whether it was imported now.
        """
        wanted = {**entry.tags, **tags}
        known = self._complete(entry)
        if known is None:
            run_id = self._import(entry, wanted)
        else:
            run_id = known.info.run_id
            self._correct(known, wanted)
        for key, runs in self._known.items():
            for run in runs:
                if run.info.run_name == entry.name and key != entry.key:
                    self._correct(run, {SUPERSEDED: "yes", **tags})
        return run_id, known is None

    def _complete(self, entry: Entry) -> Any | None:
        """Return the run that is the entry; what has its key and is not is deleted."""
        complete = None
        for known in self._known.get(entry.key, []):
            if complete is None and known.data.tags.get(COMPLETE) == entry.content:
                complete = known
            else:
                self._client.delete_run(known.info.run_id)
        return complete

    def _correct(self, known: Any, wanted: Mapping[str, str]) -> None:
        tags = known.data.tags
        self._tag(known.info.run_id, {k: v for k, v in wanted.items() if tags.get(k) != v})

    def _import(self, entry: Entry, tags: Mapping[str, str]) -> str:
        created = self._client.create_run(
            self._experiment_id,
            start_time=entry.start_ms,
            tags={"run_key": entry.key},
            run_name=entry.name,
        )
        run_id = str(created.info.run_id)
        self._log_parameters(run_id, entry)
        self._log_points(run_id, entry)
        self._log_artifacts(run_id, entry)
        self._tag(run_id, tags)
        if entry.status != "RUNNING":
            self._client.set_terminated(run_id, entry.status, end_time=entry.end_ms)
        self._tag(run_id, {COMPLETE: entry.content})
        return run_id

    def _log_parameters(self, run_id: str, entry: Entry) -> None:
        from mlflow.entities import Param

        chosen = [Param(key, value) for key, value in entry.parameters.items()]
        for batch in _batches(chosen, SMALL_BATCH_SIZE):
            self._client.log_batch(run_id, params=batch)

    def _log_points(self, run_id: str, entry: Entry) -> None:
        from mlflow.entities import Metric

        # timestamps follow the train clock, so MLflow's relative time axis is the clock
        metrics = [
            Metric(p.name, p.value, entry.start_ms + round(p.train_s * 1000), p.step)
            for p in entry.points
        ]
        for batch in _batches(metrics, BATCH_SIZE):
            self._client.log_batch(run_id, metrics=batch)

    def _log_artifacts(self, run_id: str, entry: Entry) -> None:
        for folder, paths in entry.files.items():
            for path in paths:
                self._client.log_artifact(run_id, str(path), folder or None)
        for name, text in entry.texts.items():
            self._client.log_text(run_id, text, name)

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for batch in _batches([RunTag(k, v) for k, v in tags.items()], SMALL_BATCH_SIZE):
            self._client.log_batch(run_id, tags=batch)

    def _open(self, uri: str, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            folder = None
            if database := uris.database(uri):
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


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
