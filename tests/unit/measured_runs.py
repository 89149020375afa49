"""What tests of measured runs share: how a run is asked for, and what is read of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from problems import DP4, PP4

from cona.runlog import read_records
from cona.runner import RunRequest
from cona.strategy import Strategy

Make = Callable[..., RunRequest]
"""Requests a measured run of the tiny model under the toy engine: the fixture `make`."""


DP, PP = Strategy.parse(f"{DP4}-mbs1-gbs8"), Strategy.parse(f"{PP4}-mbs1-gbs8")
"""Two layouts of one batch size."""


class CrashError(Exception):
    """Stands for SIGKILL: nothing is saved."""


def lines(result: Path, kind: str, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [r for r in read_records(result.with_name(name)) if r["kind"] == kind]


def course(result: Path) -> list[tuple[Any, ...]]:
    """What training did, without any time."""
    return [
        (r["iteration"], r["strategy"], r.get("loss"), r.get("ppl"))
        for r in read_records(result.with_name("metrics.jsonl"))
        if r["kind"] in ("step", "eval")
    ]


def events(result: Path, what: str) -> list[dict[str, Any]]:
    return [e for e in read_records(result.with_name("events.jsonl")) if e["event"] == what]
