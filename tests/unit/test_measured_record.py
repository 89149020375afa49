"""measured.jsonl: read back as written, cut at a checkpoint, torn lines and strangers refused."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import RunError
from cona.measured_record import (
    CHECKPOINT,
    CHECKPOINTS_KEPT,
    MeasuredRecord,
    keep_last_checkpoint,
)

HEAD = {"run_key": "abc", "hardware": {"device": "toy"}}
kinds = st.lists(st.sampled_from(["step", "eval", "switch", "checkpoint"]), max_size=30)


def write(folder: Path, written: list[str]) -> MeasuredRecord:
    """Write lines whose `iteration` is their place; a checkpoint gets a folder."""
    record = MeasuredRecord(folder, HEAD)
    for place, kind in enumerate(written):
        if kind == "checkpoint":
            record.new_checkpoint_folder(place).mkdir()
            record.add_checkpoint(place, 8 * place, "s", 0.5)
        else:
            record.append(kind, iteration=place, seconds=1.0)
    return record


def read(folder: Path, expected: list[tuple[int, str]]) -> None:
    """Check that the lines that are no checkpoints are these, in this order."""
    record = MeasuredRecord(folder, HEAD)
    for place, kind in expected:
        assert (record.next(kind) or {})["iteration"] == place
    assert record.next("step") is None


@given(written=kinds, torn=st.sampled_from([b"", b"{", b'{"kind":"step","it']))
@pytest.mark.fault("torn line")
def test_what_was_written_is_read_back_and_a_torn_line_is_not(
    written: list[str], torn: bytes
) -> None:
    with TemporaryDirectory() as name:
        record = write(Path(name), written)
        with record.path.open("ab") as file:
            file.write(torn)
        read(Path(name), [(i, k) for i, k in enumerate(written) if k != "checkpoint"])


@given(written=kinds)
def test_after_a_cut_the_lines_up_to_the_checkpoint_stand(written: list[str]) -> None:
    with TemporaryDirectory() as name:
        write(Path(name), written)
        record = MeasuredRecord(Path(name), HEAD)
        latest = next(record.checkpoints(), None)
        end = latest["iteration"] + 1 if latest else 0
        lost = record.cut_after(latest)
        assert [line["iteration"] for line in lost] == list(range(end, len(written)))
        assert record.path.read_bytes().count(b"\n") == end + 1
        read(Path(name), [(i, k) for i, k in enumerate(written[:end]) if k != "checkpoint"])


@given(written=kinds)
def test_only_the_latest_checkpoints_are_kept(written: list[str]) -> None:
    with TemporaryDirectory() as name:
        record = write(Path(name), written)
        places = [place for place, kind in enumerate(written) if kind == "checkpoint"]
        folders = {int(p.name) for p in Path(name).glob("checkpoints/*")}
        assert folders == set(places[-CHECKPOINTS_KEPT:])
        assert [c["iteration"] for c in record.checkpoints()] == sorted(folders, reverse=True)
        assert record.seconds_of(CHECKPOINT) == 0.5 * len(places)


def test_a_checkpoint_that_serves_twice_is_one_of_those_kept(tmp_path: Path) -> None:
    record = write(tmp_path, ["checkpoint", "step", "checkpoint", "eval"])
    assert not record.is_kept
    record.add_checkpoint(2, 16, "s", 0.0)
    assert record.is_kept
    record = MeasuredRecord(tmp_path, HEAD)
    latest, before = record.checkpoints()
    assert (latest["seconds"], before["iteration"]) == (0.0, 0)
    assert record.cut_after(latest) == []
    read(tmp_path, [(1, "step"), (3, "eval")])


@given(written=kinds)
def test_a_finished_run_keeps_the_last_checkpoint_alone(written: list[str]) -> None:
    with TemporaryDirectory() as name:
        write(Path(name), written)
        places = [place for place, kind in enumerate(written) if kind == "checkpoint"]
        for _ in range(2):  # again changes nothing
            keep_last_checkpoint(Path(name))
            left = {int(p.name) for p in Path(name).glob("checkpoints/*")}
            assert left == set(places[-1:])
        found = MeasuredRecord(Path(name), HEAD).checkpoints()
        assert [c["iteration"] for c in found] == places[-1:]
        read(Path(name), [(i, k) for i, k in enumerate(written) if k != "checkpoint"])


def test_the_last_checkpoint_is_the_one_of_most_iterations(tmp_path: Path) -> None:
    for iteration in (900, 1000):
        (tmp_path / "checkpoints" / str(iteration)).mkdir(parents=True)
    keep_last_checkpoint(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["1000"]


def test_a_cut_removes_what_a_crash_left_among_the_checkpoints(tmp_path: Path) -> None:
    record = write(tmp_path, ["step", "checkpoint", "step"])
    (tmp_path / "checkpoints" / "2.tmp").mkdir()
    record.cut_after(next(record.checkpoints()))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ({**HEAD, "run_key": "xyz"}, "made with run_key abc, but now it is xyz"),
        ({**HEAD, "hardware": {"device": "h200"}}, "made with hardware .*toy.*now it is .*h200"),
    ],
)
def test_a_record_of_another_run_or_hardware_is_refused(
    tmp_path: Path, head: dict[str, object], sentence: str
) -> None:
    write(tmp_path, ["step"])
    with pytest.raises(RunError, match=sentence):
        MeasuredRecord(tmp_path, head)


def test_a_line_of_another_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ["step", "checkpoint", "eval"])
    record = MeasuredRecord(tmp_path, HEAD)
    record.next("step")
    with pytest.raises(RunError, match="line 4: this run would do something else here .switch."):
        record.next("switch")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{broken}", "not JSON"),
        (b"\xff", "not JSON"),
        (b"5", "not a JSON object"),
        (b'["step"]', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"kint":"step"}', "has no kind"),
        (b"{}", "has no kind"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    record = write(tmp_path, ["step"])
    record.path.write_bytes(record.path.read_bytes() + line + b"\n")
    remedy = "cut off this line and all after it to continue from a checkpoint before it"
    with pytest.raises(RunError, match=f"line 3: {what}; {remedy}"):
        _ = MeasuredRecord(tmp_path, HEAD).has_checkpoints  # reads every line


def test_a_line_that_has_lost_a_key_is_named(tmp_path: Path) -> None:
    record = write(tmp_path, ["step", "eval"])
    record.path.write_bytes(record.path.read_bytes().replace(b"seconds", b"secands", 1))
    with pytest.raises(RunError, match="line 2: has no seconds"):
        MeasuredRecord(tmp_path, HEAD).seconds_of("step")
