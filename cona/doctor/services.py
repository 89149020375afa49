"""What CONA-bench talks to: an MLflow store, SLURM, a browser that draws pages."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from cona.doctor.ask import Answers
from cona.doctor.finding import Finding
from cona.errors import ConaError

LIMIT_S = 3.0
"""Seconds within which a tracking server must be reachable."""
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def mlflow(results: Path, answers: Answers) -> Iterator[Finding]:
    """Can runs be imported into the MLflow store that is chosen?"""
    from cona.tracking import uri as uris

    chosen = uris.chosen()
    where = uris.shown(chosen)
    try:
        uris.check(chosen)
        problem = _database_problem(chosen) if uris.database(chosen) else server_problem(chosen)
    except ConaError as error:
        problem = str(error)
    if problem is None:
        yield Finding(name="mlflow", state="ok", found=f"{where}: reachable")
        return
    remedy = f"runs go on without; start it or set {uris.VARIABLE}, then `cona track` catches up"
    yield Finding(name="mlflow", state="warn", found=f"{where}: {problem}", remedy=remedy)


def _database_problem(chosen: str) -> str | None:
    from cona.tracking import uri as uris
    from cona.tracking.store import check_database

    check_database(chosen)
    path = uris.database(chosen) or Path()
    target = path if path.exists() else path.absolute().parent
    return None if os.access(target, os.W_OK) else f"{target} cannot be written"


def server_problem(chosen: str) -> str | None:
    """Return why a server cannot be reached; None: it can.

    Args:
        chosen: its URI.
    """
    problems = [f"no answer within {LIMIT_S:g} s"]
    # A thread, because looking up a name has no time limit of its own.
    knock = threading.Thread(target=_knock, args=(urlsplit(chosen), problems), daemon=True)
    knock.start()
    knock.join(LIMIT_S)
    return problems[-1] if problems else None


def _knock(parts: SplitResult, problems: list[str]) -> None:
    try:
        if parts.scheme in ("http", "https"):
            _get_health(parts)
        else:
            port = parts.port or PORTS[parts.scheme.partition("+")[0]]
            socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S).close()
    except KeyError:
        problems.append("only MLflow itself can try that")
    except (OSError, ValueError, HTTPException) as error:  # ValueError: no such port
        reason = getattr(error, "reason", error)
        problems.append(getattr(reason, "strerror", None) or str(reason))
    else:
        problems.clear()


def _get_health(parts: SplitResult) -> None:
    """Ask an MLflow server how it is; raises OSError. A server that wants a password is there."""
    where = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, where, f"{parts.path.rstrip('/')}/health", "", ""))
    try:
        urllib.request.urlopen(url, timeout=LIMIT_S).close()
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            raise


def browser(results: Path, answers: Answers) -> Iterator[Finding]:
    """Is there a browser in which tests can look at pages?"""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found:
        yield Finding(name="browser", state="ok", found=found)
    else:
        remedy = "only tests of pages want one: install chromium"
        yield Finding(name="browser", state="absent", found="no Chromium", remedy=remedy)


def slurm(results: Path, answers: Answers) -> Iterator[Finding]:
    """Does SLURM answer here, and with which partitions?"""
    partitions, queue = answers("partitions"), answers("queue")
    if partitions is None or queue is None:
        remedy = "only the SLURM profile needs it; on a cluster: use a login node"
        yield Finding(name="slurm", state="absent", found="no sinfo and squeue", remedy=remedy)
        return
    silent = next((answer for answer in (partitions, queue) if answer.code != 0), None)
    if silent:
        remedy = "ask the administrator; without SLURM everything else works"
        yield Finding(name="slurm", state="warn", found=silent.reason, remedy=remedy)
        return
    lines = [line.split("\t") for line in partitions.out.splitlines() if line.strip()]
    num_jobs = len(queue.out.split())
    words = ", ".join(f"{name} ({nodes} nodes, {state})" for name, state, nodes in lines)
    details = {
        "partitions": [{"name": n, "state": s, "nodes": int(k)} for n, s, k in lines],
        "own_jobs": num_jobs,
    }
    found = f"{words or 'no partition'}; {num_jobs} jobs of yours"
    yield Finding(name="slurm", state="ok", found=found, details=details)
