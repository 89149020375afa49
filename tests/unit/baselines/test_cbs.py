"""The fixed-layout rivals of COPUS against decisions worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, problem
from walks import walk

from baselines.cbs import CbsOptimistic, CbsPessimistic, nearest_rung

TRACE = [
    100.0,  # too few iterations
    4.0,  # 2*GNS = 8
    5.0,  # 10 is nearer to 8 than to 16
    6.0,  # 12 is as near to 8 as to 16: the smaller
    6.5,  # 13: 16
    100.0,  # too few iterations since the switch
    11.0,  # 22: 16 (6 away) before 32 (10 away)
    12.5,  # 25: 32
    1.0,
    1.0,  # 2: 8, but never down
]


def test_pessimistic_holds_the_layout_of_the_smallest_batch() -> None:
    assert walk(CbsPessimistic(), problem(TableTimes(TABLE)), TRACE) == [
        (0, f"{PP4}-mbs1-gbs8"),
        (5, f"{PP4}-mbs1-gbs16"),
        (8, f"{PP4}-mbs1-gbs32"),
    ]


def test_optimistic_holds_the_layout_of_the_largest_batch() -> None:
    assert walk(CbsOptimistic(), problem(TableTimes(TABLE)), TRACE) == [
        (0, f"{DP4}-mbs1-gbs8"),
        (5, f"{DP4}-mbs1-gbs16"),
        (8, f"{DP4}-mbs1-gbs32"),
    ]


def test_optimistic_starts_where_its_layout_can_run() -> None:
    table = {key: seconds for key, seconds in TABLE.items() if key != (DP4, 8)}
    assert walk(CbsOptimistic(), problem(TableTimes(table)), [])[0][1] == f"{DP4}-mbs1-gbs16"


def test_may_jump_over_a_rung() -> None:
    chain = walk(CbsPessimistic(), problem(TableTimes(TABLE)), [1.0, 1000.0])
    assert [text for _, text in chain] == [f"{PP4}-mbs1-gbs8", f"{PP4}-mbs1-gbs32"]


@given(st.floats(0, 1e6))
def test_nearest_rung_is_nearest(gbs: float) -> None:
    rungs = (8, 16, 32)
    found = nearest_rung(rungs, gbs)
    assert all(abs(found - gbs) <= abs(rung - gbs) for rung in rungs)


@pytest.mark.parametrize("kind", [CbsPessimistic, CbsOptimistic])
@given(trace=st.lists(st.floats(0.01, 100), max_size=30))
def test_never_down_and_one_layout(kind: type[CbsPessimistic], trace: list[float]) -> None:
    chain = walk(kind(), problem(TableTimes(TABLE)), trace)
    sizes = [int(text.rpartition("gbs")[2]) for _, text in chain]
    assert sizes == sorted(sizes)
    assert len({text.partition("-mbs")[0] for _, text in chain}) == 1
