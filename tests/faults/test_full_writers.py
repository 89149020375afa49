"""A real disk that is full: every writer says so, leaves what stood, and goes on with space."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import CONA, FIXED, write_tier
from problems import tiny_model
from processes import be_cona, start
from ranks import run_ranks
from refusals import SmallDisk, check_refused
from sharded_states import load, save

from cona.data import prepare
from cona.errors import StorageError
from cona.measured_record import MeasuredRecord
from cona.runlog import JsonLines, SharedLines, append_record, read_records
from cona.storage import write_whole


def fill(folder: Path, left_kb: int) -> Path:
    """Fill a disk of 256 kB but for some pages; return the file that takes the space."""
    path = folder / "ballast"
    path.write_bytes(bytes(1024 * (256 - left_kb)))
    return path


@pytest.mark.fault("disk full")
def test_a_line_that_does_not_fit_is_refused_and_written_when_it_does(
    small_disk: SmallDisk,
) -> None:
    disk = small_disk("size=256k")
    for write in (_verified, _shared, _events, _measured):
        ballast = fill(disk, left_kb=12)
        with pytest.raises(StorageError, match=f"{disk}: no space left for .*; free 4.. bytes or"):
            write(disk, 10_000)
        (path,) = disk.glob("*.jsonl")
        written = len(read_records(path))
        ballast.unlink()
        write(disk, 40)
        records = read_records(path)
        assert 10 < written < len(records)
        assert [record["n"] for record in records] == list(range(len(records)))
        path.unlink()


def _record(n: int) -> dict[str, object]:
    return {"n": n, "text": "x" * 400}


def _verified(folder: Path, until: int) -> None:
    log = JsonLines(folder / "verified.jsonl")
    for n in range(until):
        log.append(_record(n))
    log.finish()


def _shared(folder: Path, until: int) -> None:
    lines = SharedLines(folder / "shared.jsonl")
    for n in range(len(lines.unread()), until):
        lines.append(_record(n))


def _events(folder: Path, until: int) -> None:
    path = folder / "events.jsonl"
    for n in range(len(read_records(path)), until):
        append_record(path, _record(n))


def _measured(folder: Path, until: int) -> None:
    record = MeasuredRecord(folder, {"n": 0})
    record.cut_after(None)
    for n in range(1, until):
        record.append("step", **_record(n))


@pytest.mark.fault("disk full")
def test_a_file_that_does_not_fit_leaves_the_old_one(small_disk: SmallDisk) -> None:
    disk = small_disk("size=256k")
    write_whole(disk / "state", b"old")
    with pytest.raises(StorageError, match=r"300\.0 kB or more to write, 2.*free [45]"):
        write_whole(disk / "state", b"new" * 50_000, b"er" * 75_000)
    assert [path.name for path in disk.iterdir()] == ["state"]
    assert (disk / "state").read_bytes() == b"old"
    write_whole(disk / "state", b"newer")
    assert (disk / "state").read_bytes() == b"newer"


@pytest.mark.fault("disk full")
@pytest.mark.parametrize("left_kb", [0, 150])
def test_a_sharded_checkpoint_that_does_not_fit_leaves_the_one_before(
    small_disk: SmallDisk, left_kb: int
) -> None:
    disk = small_disk("size=8m")
    assert run_ranks(save, 2, disk / "1") == [None, None]
    size = sum(path.stat().st_size for path in (disk / "1").iterdir())
    assert size > 230 * 1024, "it would fit"
    small_disk(f"size={size // 1024 + 40 + left_kb}k")
    for sentence in run_ranks(save, 2, disk / "2"):
        assert f"{disk}: no space left for 2: " in sentence
    assert [path.name for path in disk.iterdir()] == ["1"]
    assert run_ranks(load, 2, disk / "1") == [True, True]
    small_disk("size=8m")
    assert run_ranks(save, 2, disk / "2") == [None, None]
    assert run_ranks(load, 2, disk / "2") == [True, True]


@pytest.mark.fault("disk full")
def test_texts_that_do_not_fit_into_the_cache(
    small_disk: SmallDisk, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("size=64k")
    monkeypatch.setenv("CONA_CACHE_DIR", str(disk))
    sentence = f"{disk}/data: no space left for .*, or set CONA_CACHE_DIR, and run the same"
    with pytest.raises(StorageError, match=sentence):
        prepare(words, tiny_model())
    assert list((disk / "data").iterdir()) == []
    small_disk("size=4m")
    assert len(prepare(words, tiny_model()).tokens) == 3


@pytest.mark.fault("disk full")
@pytest.mark.parametrize("what", ["tables", "figures"])
def test_tables_and_figures_are_whole_or_missing(
    small_disk: SmallDisk, tmp_path: Path, what: str
) -> None:
    model = "bert-large-proxy"
    write_tier(tmp_path / "large", models=(model,), plans=(CONA, FIXED[3]))
    command = (what, "--tier", "quick", "--out")
    assert start(tmp_path / "said", be_cona, *command, str(tmp_path / "large")).ends()[0] == 0
    disk = small_disk("size=8m")
    write_tier(disk, models=(model,), plans=(CONA, FIXED[3]))
    used_kb = sum(-(-p.stat().st_size // 4096) * 4 for p in disk.rglob("*") if p.is_file())
    whole = {p.name: p.read_bytes() for p in (tmp_path / "large/quick" / what).iterdir()}
    small_disk(f"size={used_kb + sum(map(len, whole.values())) // 2048}k")
    code, said = start(tmp_path / "said", be_cona, *command, str(disk)).ends()
    check_refused(code, said, disk / "quick" / what, "no space left for ")
    there = {p.name: p.read_bytes() for p in (disk / "quick" / what).iterdir()}
    assert there.items() < whole.items()
    assert there
    small_disk("size=8m")
    assert start(tmp_path / "said", be_cona, *command, str(disk)).ends()[0] == 0
    assert {p.name for p in (disk / "quick" / what).iterdir()} == whole.keys()
