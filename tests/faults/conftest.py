"""Makes the helpers of other test folders importable, and gives small disks and toy runs."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("unit", "distributed", "workflow", "unit/engine")]


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a corpus of 120 short files of words with a skewed distribution."""
    folder = tmp_path_factory.mktemp("words")
    rng = random.Random(0)
    names, weights = [f"w{i}" for i in range(60)], [1 / (i + 1) for i in range(60)]
    for i in range(120):
        (folder / f"{i}.txt").write_text(" ".join(rng.choices(names, weights, k=400)))
    return f"text:{folder}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a file system of some kB in memory, or resizes it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        change = ["-o", f"remount,{options}"] if mounted else ["-t", "tmpfs", "-o", options, "none"]
        done = subprocess.run(["mount", *change, str(folder)], capture_output=True, text=True)
        if done.returncode and not mounted:
            pytest.skip(f"NOTHING IS SHOWN ABOUT REAL DISKS: mount: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        mounted.append(folder)
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
