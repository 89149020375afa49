"""Real file systems that are full or read-only: what a user is told, and that nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from refusals import SmallDisk, check_refused
from toy_cona import files_of, start_toy, write_config

POLICY = "rampup"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, words: str) -> tuple[Path, dict[str, bytes]]:
    """Return the configuration of a toy run, and what the run writes on a disk that is large."""
    folder = tmp_path_factory.mktemp("disks")
    ladder = {"gbs_min": 8, "gbs_max": 16, "mbs_max": 8}
    tier = {"budget": {"iterations": 40}, "snapshot_interval_samples": 16, "ladder": ladder}
    write_config(folder / "config", words, **tier)
    code, said = start_toy(folder / "config", folder / "whole", POLICY).ends()
    assert code == 0, said
    return folder / "config", files_of(folder / "whole")


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.fault("disk full")
@pytest.mark.parametrize("size_kb", [16, 48, 80, 112])
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_space(
    toy: tuple[Path, dict[str, bytes]], small_disk: SmallDisk, size_kb: int
) -> None:
    config, whole = toy
    disk = small_disk(f"size={size_kb}k")
    code, said = start_toy(config, disk, POLICY).ends()
    check_refused(code, said, disk, "no space left for ")
    assert " or more to write, " in said or " free; free some there" in said
    assert not list(disk.rglob("result.json"))
    small_disk("size=1m")
    code, said = start_toy(config, disk, POLICY).ends()
    assert code == 0, said
    assert files_of(disk) == whole


@pytest.mark.fault("read-only folder")
def test_a_run_on_a_read_only_disk_says_so_and_goes_on_when_it_is_writable(
    toy: tuple[Path, dict[str, bytes]], small_disk: SmallDisk
) -> None:
    config, whole = toy
    disk = small_disk("size=1m,ro")
    code, said = start_toy(config, disk, POLICY).ends()
    check_refused(code, said, disk, "Read-only file system; make it writable or choose another")
    small_disk("rw")
    assert start_toy(config, disk, POLICY).ends()[0] == 0
    assert files_of(disk) == whole
    small_disk("ro")
    code, said = start_toy(config, disk, POLICY).ends()
    check_refused(code, said, disk, "Read-only file system")
    small_disk("rw")  # it holds a lock file: unmounting waits for nobody


@pytest.mark.fault("disk full")
def test_a_signal_on_a_full_disk_is_no_clean_stop(
    toy: tuple[Path, dict[str, bytes]], small_disk: SmallDisk
) -> None:
    """What was asked to save and cannot must not claim that it did."""
    config, whole = toy
    disk = small_disk("size=1m")
    child = start_toy(config, disk, POLICY)
    while not list(disk.rglob("steps.jsonl")):
        assert child.process.is_alive()
    (disk / "ballast").write_bytes(b"")
    with (disk / "ballast").open("wb", buffering=0) as file:
        filled_up = False
        while not filled_up:
            try:
                filled_up = file.write(bytes(4096)) < 4096
            except OSError:
                filled_up = True
    child.process.terminate()
    code, said = child.ends()
    assert code in (1, 128 + signal.SIGTERM, 0)
    if code == 1:
        check_refused(code, said, disk, "no space left")
    (disk / "ballast").unlink()
    assert start_toy(config, disk, POLICY).ends()[0] == 0
    assert files_of(disk) == whole
