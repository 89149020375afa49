"""Traces as CSV: columns samples,gns[,gns_se]; each broken row is one sentence."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cona.errors import ConfigError, nearest
from cona.replay.trace import GnsTrace, Recording, Trace, read_recording
from cona.storage import put

COLUMNS = ("samples", "gns", "gns_se")
"""Consumed samples; noise scale in samples; its standard error in samples, which may be absent."""
REQUIRED = COLUMNS[:2]
LARGEST, SMALLEST_GNS = 1e15, 1e-15
"""Bounds of a number of samples; far beyond any run, they keep squares within range."""


def read_trace(path: Path) -> Trace:
    """Read a CSV trace, or a recorded run: its directory or its metrics.jsonl.

    Raises:
        ConfigError: no such file, or a row or column breaks a rule.
        RunError: a line of metrics.jsonl is not JSON.
    """
    if path.is_dir():
        return read_recording(path / "metrics.jsonl")
    if path.suffix == ".jsonl":
        return read_recording(path)
    return read_csv(path)


def read_csv(path: Path) -> GnsTrace:
    """Read a trace with the columns samples,gns[,gns_se].

    Raises:
        ConfigError: no such file, wrong columns, or a row that is empty, not a number, not finite,
            out of range, or not after the one before.
    """
    lines = _lines(path)
    if not lines:
        raise ConfigError(f"{path}: the file is empty; it needs the columns {','.join(REQUIRED)}")
    head = _checked_head([cell.strip() for cell in lines[0]], path)
    if len(lines) == 1:
        raise ConfigError(f"{path}: there is no row below the columns; a trace needs one or more")
    rows: list[dict[str, float]] = []
    for number, cells in enumerate(lines[1:], start=1):
        where = f"{path}, row {number} (line {number + 1})"
        row = _row(head, cells, where)
        _check_order(row["samples"], rows[-1]["samples"] if rows else None, where)
        rows.append(row)
    samples, gns, gns_se = (np.array([row.get(c, 0.0) for row in rows]) for c in COLUMNS)
    return GnsTrace(samples=samples, gns=gns, gns_se=gns_se)


def _lines(path: Path) -> list[list[str]]:
    """Return the lines as cells; blank ones at the end do not count."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            text = file.read()
        if "\0" in text:
            raise ConfigError(f"{path}: not CSV: it holds zero bytes")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a CSV or a run directory") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not CSV: {error}") from error
    while lines and not any(cell.strip() for cell in lines[-1]):
        lines.pop()
    return lines


def _checked_head(head: Sequence[str], path: Path) -> Sequence[str]:
    for name in head:
        if name not in COLUMNS:
            raise ConfigError(f"{path}: unknown column '{name}': {nearest(name, COLUMNS)}")
        if head.count(name) > 1:
            raise ConfigError(f"{path}: column '{name}' is there twice; keep one")
    for name in REQUIRED:
        if name not in head:
            raise ConfigError(f"{path}: column '{name}' is missing; columns: samples,gns[,gns_se]")
    return head


def _row(head: Sequence[str], cells: Sequence[str], where: str) -> dict[str, float]:
    if len(cells) > len(head):
        raise ConfigError(f"{where}: it has {len(cells)} cells but there are {len(head)} columns")
    filled = [*cells, *[""] * (len(head) - len(cells))]
    return {
        name: _number(name, cell.strip(), where) for name, cell in zip(head, filled, strict=True)
    }


def _number(name: str, cell: str, where: str) -> float:
    if not cell:
        raise ConfigError(f"{where}: {name} is empty, a gap; give a number or leave the row out")
    try:
        value = float(cell)
    except ValueError as error:
        raise ConfigError(f"{where}: {name} = '{cell}' is not a number") from error
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} = {cell} is not finite; leave the row out")
    if value < 0 or (name == "gns" and value == 0):
        least = "greater than 0" if name == "gns" else "0 or more"
        raise ConfigError(f"{where}: {name} = {cell} must be {least}; leave the row out")
    if value > LARGEST or (name == "gns" and value < SMALLEST_GNS):
        limit = f"at most {LARGEST:g}" if value > LARGEST else f"at least {SMALLEST_GNS:g}"
        raise ConfigError(f"{where}: {name} = {cell} must be {limit}; leave the row out")
    return value


def _check_order(samples: float, before: float | None, where: str) -> None:
    if before is None or samples > before:
        return
    if samples == before:
        raise ConfigError(f"{where}: samples {samples:.15g} is there twice; keep one of the rows")
    raise ConfigError(
        f"{where}: samples {samples:.15g} comes after {before:.15g}; sort the rows by samples"
    )


def write_csv(recording: Recording, path: Path) -> int:
    """Write a run's smoothed GNS as a CSV trace; iterations without an interval are left out.

    Args:
        recording: a recorded run.
        path: the file to write.

    Returns:
        The number of rows.

    Raises:
        ConfigError: no iteration has a GNS with an interval, or the file cannot be written.
    """
    known = [(s.samples, s.gns, s.gns_se) for s in recording.steps if s.gns_se is not None]
    if not known:
        raise ConfigError("the run has no iteration with a noise scale: there is no trace to write")
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows([COLUMNS, *known])
    try:
        put(path, content.getvalue().encode())
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from error
    return len(known)
