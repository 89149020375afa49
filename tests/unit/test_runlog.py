"""Logs that verify, shared logs, and files that appear whole."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import RunError
from cona.runlog import JsonLines, SharedLines, dumps, read_json, read_records, write_json

RECORDS = [{"kind": "step", "iteration": i, "loss": 1 / (i + 1)} for i in range(5)]


def write(path: Path, records: list[dict[str, object]]) -> None:
    log = JsonLines(path)
    for record in records:
        log.append(record)
    log.close()


@given(cut=st.integers(0, 10**6))
@pytest.mark.fault("torn line")
def test_a_log_cut_anywhere_is_completed_to_the_same_bytes(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    whole, torn = folder / "whole.jsonl", folder / "torn.jsonl"
    write(whole, RECORDS)
    content = whole.read_bytes()
    torn.write_bytes(content[: cut % (len(content) + 1)])
    write(torn, RECORDS)
    assert torn.read_bytes() == content


def test_a_log_refuses_another_history(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, RECORDS)
    log = JsonLines(path)
    log.append(RECORDS[0])
    assert log.replaying
    with pytest.raises(RunError, match=r"line 2: differs .* delete"):
        log.append({"kind": "step", "iteration": 99})
    assert read_records(path) == RECORDS


def test_a_log_that_holds_more_than_the_run_makes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, RECORDS)
    log = JsonLines(path)
    log.append(RECORDS[0])
    with pytest.raises(RunError, match="4 lines more"):
        log.finish()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        dumps({"loss": value})


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(RunError, match="line 2: not JSON"):
        read_records(path)


def test_shared_lines_see_what_others_append(tmp_path: Path) -> None:
    mine, theirs = SharedLines(tmp_path / "s.jsonl"), SharedLines(tmp_path / "s.jsonl")
    mine.append(RECORDS[0])
    assert theirs.unread() == [RECORDS[0]]
    theirs.append(RECORDS[1])
    assert mine.unread() == [RECORDS[1]]
    assert mine.unread() == []


@pytest.mark.fault("torn line")
def test_shared_lines_cut_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SharedLines(path).append(RECORDS[0])
    with path.open("ab") as file:
        file.write(b'{"kind":"st')
    lines = SharedLines(path)
    assert lines.unread() == [RECORDS[0]]
    lines.append(RECORDS[1])
    assert read_records(path) == RECORDS[:2]


def test_shared_lines_that_became_shorter_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    lines = SharedLines(path)
    lines.append(RECORDS[0])
    path.unlink()
    with pytest.raises(RunError, match="became shorter"):
        lines.unread()


def test_json_documents(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    write_json(path, RECORDS[1])
    assert read_json(path) == RECORDS[1]
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    path.write_text("{")
    with pytest.raises(RunError, match="damaged"):
        read_json(path)
