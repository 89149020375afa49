"""Files that are not what was written: a run that was killed continues to the same bytes anyway."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from processes import Disk
from toy_cona import RUN, files_of, start_toy, write_config

from cona.owner import Owner
from cona.runlog import read_records

POLICY = "rampup"
KILLED_AT = 150
"""The operation at which the run is killed that is then damaged: after the batch size changed."""

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, words: str) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "config"
    ladder = {"gbs_min": 8, "gbs_max": 16, "mbs_max": 8}
    tier = {"budget": {"iterations": 12}, "snapshot_interval_samples": 16, "ladder": ladder}
    write_config(folder, words, **tier)
    return folder


@pytest.fixture(scope="module")
def whole(config: Path) -> dict[str, bytes]:
    """Return what a run writes that nothing happens to."""
    code, said = start_toy(config, config.with_name("whole"), POLICY).ends()
    assert code == 0, said
    return files_of(config.with_name("whole"))


def latest(results: Path, pattern: str) -> Path:
    """Return the file of a name that was written last."""
    return max(results.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)


def run_folder(results: Path) -> Path:
    return results / RUN / POLICY / "seed0"


# --- damages --------------------------------------------------------------------------------------


def truncated(results: Path) -> None:
    path = latest(results, "*.pt")
    path.write_bytes(path.read_bytes()[:-1])


def flipped(results: Path) -> None:
    path = latest(results, "*.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def all_flipped(results: Path) -> None:
    for path in results.rglob("*.pt"):
        path.write_bytes(path.read_bytes()[::-1])


def lost(results: Path) -> None:
    latest(results, "*.pt").unlink()


def torn(*names: str) -> Damage:
    """Return a damage: the last line of some files is only half there."""

    def tear(results: Path) -> None:
        for name in names:
            path = latest(results, name)
            content = path.read_bytes()
            path.write_bytes(content[: -len(content.splitlines()[-1]) // 2 - 1])

    return tear


def cut(name: str) -> Damage:
    """Return a damage: the last two lines of a file never reached the disk."""

    def shorten(results: Path) -> None:
        path = latest(results, name)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))

    return shorten


def half_a_result(results: Path) -> None:
    (run_folder(results) / "result.json").write_text('{"schema": 1, "status": "finis')


def a_draft_of_a_result(results: Path) -> None:
    (run_folder(results) / ".result.json.0123abcd.99").write_text('{"schema": 1, "status": "fi')


def stale_locks(results: Path) -> None:
    """Leave locks of a process that is gone, whose number another one has by now."""
    gone = replace(Owner.this_process(), started_s=1.0).to_json()
    for folder in (run_folder(results), *results.rglob("_trajectories/*")):
        (folder / ".lock.77").write_text(gone)


DAMAGES = {
    "damaged snapshot": (truncated, flipped, all_flipped, lost),
    "torn line": (
        torn("metrics.jsonl"),
        torn("steps.jsonl"),
        torn("evals.jsonl"),
        torn("events.jsonl"),
        torn("metrics.jsonl", "steps.jsonl", "evals.jsonl", "events.jsonl"),
    ),
    "lines that never reached the disk": (cut("metrics.jsonl"), cut("steps.jsonl")),
    "half-written result": (half_a_result, a_draft_of_a_result),
    "stale lock": (stale_locks,),
}


def check(config: Path, whole: dict[str, bytes], results: Path, fault: str) -> None:
    """Damage a run that was killed in every way of a kind, and continue it each time."""
    for number, damage in enumerate(DAMAGES[fault]):
        folder = results / str(number)
        disk = Disk(kind="killed", at=KILLED_AT, folder=folder)
        folder.parent.mkdir(exist_ok=True)
        assert start_toy(config, folder, POLICY, disk).ends()[0] == -signal.SIGKILL
        damage(folder)
        code, said = start_toy(config, folder, POLICY).ends()
        assert code == 0, said
        assert files_of(folder) == whole
        events = read_records(run_folder(folder) / "events.jsonl")
        assert [event["event"] for event in events][-2:] == ["resumed", "finished"]


@pytest.mark.fault("damaged snapshot")
def test_damaged_snapshots(config: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    check(config, whole, tmp_path, "damaged snapshot")


@pytest.mark.fault("torn line")
def test_torn_lines(config: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    check(config, whole, tmp_path, "torn line")


@pytest.mark.fault("lines that never reached the disk")
def test_lines_that_a_power_cut_took(config: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    check(config, whole, tmp_path, "lines that never reached the disk")


@pytest.mark.fault("half-written result")
def test_results_that_are_half_there(config: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    check(config, whole, tmp_path, "half-written result")


@pytest.mark.fault("stale lock")
def test_locks_of_processes_that_are_gone(
    config: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    check(config, whole, tmp_path, "stale lock")


@pytest.mark.fault("damaged result")
def test_a_flipped_digit_in_a_result_is_noticed(
    config: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    assert start_toy(config, tmp_path / "run", POLICY).ends()[0] == 0
    result = run_folder(tmp_path / "run") / "result.json"
    content = result.read_text()
    result.write_text(content.replace('"iterations": 1', '"iterations": 9'))
    assert result.read_text() != content
    code, said = start_toy(config, tmp_path / "run", POLICY).ends()
    assert code == 0
    assert "result.json is damaged: it does not match its checksum; the run is repeated" in said
    assert "skipped" not in said
    assert files_of(tmp_path / "run") == whole


@pytest.mark.fault("half-written result")
def test_a_result_that_does_not_fit_its_metrics_is_made_again(
    config: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    assert start_toy(config, tmp_path / "run", POLICY).ends()[0] == 0
    metrics = run_folder(tmp_path / "run") / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    code, said = start_toy(config, tmp_path / "run", POLICY).ends()
    assert code == 0
    assert "metrics.jsonl is damaged" in said
    assert "skipped" not in said
    assert files_of(tmp_path / "run") == whole
    assert json.loads((metrics.with_name("result.json")).read_text())["status"] == "finished"
