"""Files that appear whole or not at all, and the sentences about those that could not."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona import storage
from cona.errors import RunError, StorageError
from cona.storage import amount, discard, draft_of, put, refusal, write_whole, writing


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1_530_000, "1.5 MB"),
        (16 * 10**9, "16.0 GB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_amounts_for_people(num_bytes: int, text: str) -> None:
    assert amount(num_bytes) == text


@given(st.integers(0, 10**18))
def test_an_amount_is_right_to_its_last_digit(num_bytes: int) -> None:
    number, unit = amount(num_bytes).split()
    scale = 1000 ** ["bytes", "kB", "MB", "GB", "TB"].index(unit)
    assert abs(float(number) * scale - num_bytes) <= 0.051 * scale
    assert float(number) < 1000 or unit == "TB" or float(number) == 1000.0


@pytest.mark.parametrize(
    ("number", "num_bytes", "sentence"),
    [
        (errno.ENOSPC, 3000, "no space left for x: 3.0 kB or more to write, 1.0 kB free; free 2.0"),
        (errno.ENOSPC, 0, "no space left for x, 1.0 kB free; free some there"),
        (errno.EDQUOT, 500, "500 bytes or more to write, 1.0 kB free; free more there, or raise"),
        (errno.EROFS, 9, "cannot write x: Read-only file system; make it writable or choose"),
        (errno.EACCES, 9, "cannot write x: Permission denied; make it writable or choose another"),
        (errno.EIO, 9, "cannot write x: Input/output error; mend that"),
    ],
)
def test_each_sentence(
    monkeypatch: pytest.MonkeyPatch, number: int, num_bytes: int, sentence: str
) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1000)
    error = OSError(number, os.strerror(number))
    text = str(refusal(error, Path("/runs/here/x"), num_bytes))
    assert text.startswith("/runs/here: ")
    assert sentence in text
    assert text.endswith(", and run the same command again: what is finished is kept")
    other = str(refusal(error, Path("/runs/here/x"), num_bytes, "set CONA_CACHE_DIR"))
    assert ", or set CONA_CACHE_DIR, and run the same command again" in other


def test_only_what_the_file_system_says_is_turned_into_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="mine"), writing(tmp_path):
        raise RunError("mine")
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError
    with pytest.raises(StorageError, match="cannot write file: "), writing(tmp_path / "file"):
        (tmp_path / "no" / "file").touch()


def test_the_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    there = shutil.disk_usage(tmp_path).total
    assert 0 < storage.free_bytes(tmp_path / "not" / "yet") <= there


def test_a_file_is_replaced_whole_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for text in (b"first", b"second"):
        write_whole(path, text, b" part")
        assert path.read_bytes() == text + b" part"
        assert list(path.parent.iterdir()) == [path]


def test_what_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    put(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="cannot write file: broken; mend that"):
            write_whole(path, b"new")
        with pytest.raises(OSError, match="broken"):
            put(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


LEAVE_A_DRAFT = """
import sys
from pathlib import Path
from cona.storage import draft_of
draft_of(Path(sys.argv[1])).write_text("half")
(folder := draft_of(Path(sys.argv[2]))).mkdir()
(folder / "part").touch()
"""


def test_drafts_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    names = (tmp_path / "5.pt", tmp_path / "6")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", LEAVE_A_DRAFT, *map(str, names)], check=True)
    left = {path.name.rpartition(".")[0] for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == len(left) == 2
    mine = draft_of(names[0])
    assert list(tmp_path.iterdir()) == []
    mine.write_text("half")
    living = mine.with_name(f"{mine.name.rpartition('.')[0]}.{os.getppid()}")
    elsewhere = mine.with_name(".5.pt.0123abcd.1")
    for path in (living, elsewhere):
        path.write_text("half")
    assert draft_of(names[0]) == mine  # what an earlier process of our number left, is gone
    assert set(tmp_path.iterdir()) == {living, elsewhere}


def test_discarding_files_folders_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("folder", "file", "nothing"):
        discard(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
