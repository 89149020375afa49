"""docs/faults.md is what the markers say, and every fault has a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_table import TABLE, by_fault, marked, page
from known_faults import FAULTS


def test_the_table_is_current() -> None:
    assert TABLE.read_text() == page(), "run `python tests/faults/fault_table.py`"


def test_every_fault_is_played_and_every_played_one_is_known() -> None:
    assert by_fault().keys() == FAULTS.keys()


SOURCE = """
import pytest
{slow}

@pytest.mark.fault("disk full")
def test_one(): ...

@pytest.mark.slow
@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.fault("scancel")), 2])
@pytest.mark.fault("disk full")
def test_two(a): ...

def test_three(): ...

def helper(): ...
"""


@pytest.mark.parametrize(("slow", "first"), [("", False), ("pytestmark = pytest.mark.slow", True)])
def test_markers_are_found_wherever_they_stand(tmp_path: Path, slow: str, first: bool) -> None:
    (tmp_path / "test_x.py").write_text(SOURCE.format(slow=slow))
    assert sorted(marked(tmp_path / "test_x.py")) == [
        ("disk full", "test_one", first),
        ("disk full", "test_two", True),
        ("scancel", "test_two", True),
    ]
