"""Room for results, texts and shared memory, and which texts are there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cona.doctor.ask import Answers
from cona.doctor.finding import Finding, State
from cona.errors import DataError
from cona.storage import amount, free_bytes

LEAST_BYTES = 200_000_000
"""ASSUMED: with less than that free not even the smoke tier ends."""
ENOUGH_BYTES = 10_000_000_000
"""ASSUMED: room for a tier of proxies, and for another one."""
SHARED_BYTES = 1_000_000_000
"""ASSUMED: shared memory of eight ranks of NCCL; containers often give 64 MB."""
SHARED = Path("/dev/shm")


def results(results: Path, answers: Answers) -> Iterator[Finding]:
    """Can results be written, and is there room?"""
    yield _folder("results", results, "choose another folder with --out")


def cache(results: Path, answers: Answers) -> Iterator[Finding]:
    """Can prepared texts be written, and is there room?"""
    from cona.data.prepared import cache_dir

    try:
        yield _folder("cache", cache_dir(), "set CONA_CACHE_DIR")
    except DataError as error:
        yield Finding(name="cache", state="fail", found=str(error), remedy="set CONA_CACHE_DIR")


def _folder(name: str, folder: Path, otherwise: str) -> Finding:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
    except OSError as error:
        found = f"{folder}: cannot be written: {error.strerror}"
        return Finding(name=name, state="fail", found=found, remedy=otherwise)
    free = free_bytes(folder)
    found = f"{amount(free)} free for {folder}"
    details = {"folder": str(folder), "free_bytes": free}
    if free >= ENOUGH_BYTES:
        return Finding(name=name, state="ok", found=found, details=details)
    state: State = "warn" if free >= LEAST_BYTES else "fail"
    remedy = f"free {amount(ENOUGH_BYTES - free)}, or {otherwise}; `cona estimate` tells the need"
    return Finding(name=name, state=state, found=found, remedy=remedy, details=details)


def shared_memory(results: Path, answers: Answers) -> Iterator[Finding]:
    """Is there shared memory for ranks?"""
    if not SHARED.is_dir():
        yield Finding(name="shared memory", state="absent", found=f"no {SHARED}: not a Linux")
        return
    size = shutil.disk_usage(SHARED).total
    found, details = f"{amount(size)} in {SHARED}", {"total_bytes": size}
    if size >= SHARED_BYTES:
        yield Finding(name="shared memory", state="ok", found=found, details=details)
    else:
        remedy = f"ranks may need {amount(SHARED_BYTES)}: give a container --shm-size=1g or more"
        yield Finding(
            name="shared memory", state="warn", found=found, remedy=remedy, details=details
        )


def data(results: Path, answers: Answers) -> Iterator[Finding]:
    """Which texts are prepared, and is the default one there?"""
    from cona.data.corpora import read_corpus
    from cona.data.prepared import cache_dir

    try:
        num_files = len(read_corpus("stdlib").files)
        entries = [path for path in (cache_dir() / "data").glob("*") if path.name[0] != "."]
    except DataError as error:
        remedy = "name a text of your own: --data text:PATH"
        yield Finding(name="data", state="fail", found=str(error), remedy=remedy)
        return
    found = f"stdlib with {num_files:,} files; {len(entries)} texts prepared"
    remedy = "" if entries else "none needed: runs prepare theirs; beforehand: `cona data`"
    details = {"stdlib_files": num_files, "prepared": len(entries)}
    yield Finding(name="data", state="ok", found=found, remedy=remedy, details=details)
