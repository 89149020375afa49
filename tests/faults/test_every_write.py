"""A run that is hit at any operation on a file continues to the same bytes.

The operations of a short run are counted; then, for one after the other, a run is hit there, and
the same command is given again. `file_faults` says what an operation is.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import Disk
from toy_cona import RUN, files_of, start_toy, write_config

POLICY = "rampup"
"""Changes its batch size, so the trajectory has several segments."""
SAMPLE = 24
"""Every so many operations in the quick tests, beginning somewhere else for each fault."""


@dataclass
class Place:
    """Where runs are hit, and what a run that is left alone writes."""

    folder: Path
    config: Path
    whole: dict[str, bytes] = field(default_factory=dict)
    num_operations: int = 0

    def run(self, name: str, disk: Disk | None = None, **env: str) -> tuple[int, str]:
        """Run to the end, whatever that is; return the exit status and what was said."""
        return start_toy(self.config, self.folder / name, POLICY, disk, **env).ends()

    def disk(self, name: str, kind: str, at: int) -> Disk:
        return Disk(kind=kind, at=at, folder=self.folder / name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, words: str) -> Place:
    """Return an empty place, with the run that is left alone."""
    folder = tmp_path_factory.mktemp("every-write")
    tier = {"budget": {"iterations": 12}, "snapshot_interval_samples": 16, "ladder": LADDER}
    write_config(folder / "config", words, **tier)
    place = Place(folder, folder / "config")
    child = start_toy(place.config, folder / "whole", POLICY, place.disk("whole", "none", 1))
    code, said = child.ends()
    assert code == 0, said
    place.whole, place.num_operations = files_of(folder / "whole"), child.num_operations()
    assert len(place.whole) == 2 + 3 + 2 + 3  # of the run, of gbs 8, of the root, of gbs 16
    return place


LADDER = {"gbs_min": 8, "gbs_max": 16, "mbs_max": 8}


def check_hit(place: Place, kind: str, at: int) -> None:
    """Hit a run at an operation, and check that the same command ends it as if nothing had been."""
    name = f"{kind}{at}"
    code, said = place.run(name, place.disk(name, kind, at))
    assert "Traceback" not in said, said
    if kind == "killed":
        assert code == -signal.SIGKILL
    elif code:
        assert code == 1
        (sentence,) = (line for line in said.splitlines() if line.startswith("Error"))
        assert str(place.folder / name) in sentence
        assert "run the same command again" in sentence
    again, said = place.run(name)
    assert again == 0, said
    assert files_of(place.folder / name) == place.whole
    left = [p for p in (place.folder / name).rglob(".*") if not p.name.startswith(".lock")]
    # What is not complete goes away when the next file is written into its folder.
    assert all(path.parent.name == "snapshots" for path in left)
    assert len(left) <= 1


def numbers(place: Place, first: int, step: int = SAMPLE) -> range:
    assert place.num_operations > 100
    return range(first, place.num_operations + 1, step)


@pytest.mark.fault("SIGKILL in the middle of a write")
def test_killed_at_some_operations(place: Place) -> None:
    for at in numbers(place, 3):
        check_hit(place, "killed", at)


@pytest.mark.fault("disk full")
def test_a_disk_that_gets_full_at_some_operations(place: Place) -> None:
    for at in numbers(place, 7, 64):
        check_hit(place, "full", at)


@pytest.mark.fault("read-only folder")
def test_a_disk_that_becomes_read_only_at_some_operations(place: Place) -> None:
    for at in numbers(place, 5, 64):
        check_hit(place, "read-only", at)


@pytest.mark.fault("disk that fails")
def test_a_disk_that_fails_from_some_operations_on(place: Place) -> None:
    for at in numbers(place, 9, 64):
        check_hit(place, "broken", at)


@pytest.mark.fault("slow file system")
def test_a_slow_disk_changes_nothing_but_the_time(place: Place) -> None:
    code, said = place.run("slow", place.disk("slow", "slow", 1))
    assert code == 0, said
    assert files_of(place.folder / "slow") == place.whole


@pytest.mark.slow
@pytest.mark.fault("SIGKILL in the middle of a write")
def test_killed_at_every_operation(place: Place) -> None:
    for at in numbers(place, 1, 1):
        check_hit(place, "killed", at)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("full", marks=pytest.mark.fault("disk full")),
        pytest.param("read-only", marks=pytest.mark.fault("read-only folder")),
        pytest.param("broken", marks=pytest.mark.fault("disk that fails")),
    ],
)
def test_a_disk_that_refuses_at_every_operation(place: Place, kind: str) -> None:
    for at in numbers(place, 1, 1):
        check_hit(place, kind, at)


@pytest.mark.fault("SIGKILL in the middle of a write")
def test_killed_several_times_on_the_way(place: Place) -> None:
    for at in (40, 25, 60, 3, 33):
        code, _ = place.run("often", place.disk("often", "killed", at))
        assert code == -signal.SIGKILL
    assert place.run("often")[0] == 0
    assert files_of(place.folder / "often") == place.whole
    assert (place.folder / "often" / RUN / POLICY / "seed0" / "result.json").exists()
