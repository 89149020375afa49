"""Import of runs into MLflow: a single writer, idempotent, in batches.

The run directories are the truth (docs/results-format.md); the store is a view of them that can be
deleted and imported again. No run waits for it or knows of it: it may be missing, slow or broken,
and an import that was stopped at any moment is completed by the next. MLflow is loaded only when
there is something to import.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cona.analysis.groups import order
from cona.analysis.load import Run, load_runs
from cona.analysis.ttp import Ttp, ttp_rows
from cona.errors import RunError
from cona.tracking import uri as uris
from cona.tracking.entries import PARENT, of_policy, of_report, of_run, of_unfinished
from cona.tracking.entry import Entry, Status
from cona.tracking.store import Store, check_database, create_database, one_sentence
from cona.tracking.unfinished import unfinished_runs

LOCK_TIMEOUT_S = 600.0
"""How long to wait for another import."""
LIMIT_S = 3600.0
"""ASSUMED: an import that takes longer stops between two runs; the next one goes on. A server that
answers, but slowly, would else hold up whoever waits for days."""


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import did, and what it found, counted in runs of a seed."""

    num_new: int
    """Imported now, for the first time or because their content has changed."""
    num_known: int
    """Already there, with the same content."""
    states: Mapping[Status, int]
    """All of them by MLflow's status."""


def import_runs(results: Path, tier: str, uri: str = uris.DEFAULT) -> ImportReport:
    """Import every run of a tier that has begun into the experiment ``cona/<tier>``.

    Above the runs of its seeds, each model and policy gets a run with their medians; one run more,
    ``report``, holds the tables and figures.

    Args:
        results: root of the results.
        tier: name of the tier.
        uri: MLflow tracking URI; artifacts of a SQLite store lie in ``mlartifacts/`` beside it.

    Raises:
        ConfigError: the URI names a store that MLflow cannot write to, or MLflow is not installed.
        RunError: there is no run, the store does not work, or another import holds it for too long.
    """
    uris.check(uri)
    groups = _groups(results, tier)
    report = of_report(results / tier)
    seeds = [seed for group in groups for seed in group]
    with _only_writer(results / tier, uri), one_sentence(uri):
        check_database(uri)
        create_database(uri)
        store = Store(uri, f"cona/{tier}")
        num_new = sum(_put_all(store, groups, uri))
        if report:
            store.put(report)
    return ImportReport(
        num_new=num_new,
        num_known=len(seeds) - num_new,
        states=Counter(seed.status for seed in seeds),
    )


def _groups(results: Path, tier: str) -> list[list[Entry]]:
    """Return the entries of all runs that have begun, by model and policy."""
    unfinished = list(unfinished_runs(results, tier))
    is_finished = any((results / tier).glob("*/*/seed*/result.json"))
    finished = load_runs(results, tier) if is_finished or not unfinished else []
    rows = _rows_by_run(finished)
    entries = {run.name: of_run(run, rows[run.name]) for run in finished}
    # a run that ended while we looked is finished
    entries = {found.run.name: of_unfinished(found) for found in unfinished} | entries
    ordered = sorted(entries.values(), key=_order)
    return [list(group) for _, group in groupby(ordered, key=lambda e: _order(e)[:-1])]


def _order(entry: Entry) -> tuple[str, tuple[int, int, str], int]:
    tags = entry.tags
    return tags["model"], order(tags["policy"], tags.get("kind", "")), int(tags["seed"])


def _put_all(store: Store, groups: Sequence[Sequence[Entry]], uri: str) -> Iterator[bool]:
    """Bring all runs up to date, each group below its policy; yield which seeds were imported."""
    end_s = time.monotonic() + LIMIT_S
    for group in _progress(groups):
        parent, _ = store.put(of_policy(group))
        for seed in group:
            if time.monotonic() > end_s:
                raise RunError(
                    f"MLflow store {uris.shown(uri)}: too slow to take all runs within "
                    f"{LIMIT_S:.0f} s; `cona track` goes on with the rest"
                )
            yield store.put(seed, **{PARENT: parent})[1]


@contextmanager
def _only_writer(folder: Path, uri: str) -> Iterator[None]:
    """Hold the store's lock: concurrent first use of a SQLite store corrupts it."""
    from filelock import FileLock, Timeout

    database = uris.database(uri) or folder / "mlflow"
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


def _progress(groups: Sequence[Sequence[Entry]]) -> Iterator[Sequence[Entry]]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    yield from track(
        groups, description="MLflow import", console=console, disable=hidden, transient=True
    )
