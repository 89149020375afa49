"""COPUS against decisions worked out by hand on a recorded trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import DP4, PP4, TableTimes, problem
from walks import walk

from baselines.copus import Copus, value
from cona.registry import policy

TIMES = {
    (PP4, 8): 0.20,
    (PP4, 16): 0.32,
    (PP4, 32): 0.90,
    (DP4, 8): 0.30,
    (DP4, 16): 0.40,
    (DP4, 32): 0.64,
}
# value = gbs^1.5/T / (gbs + C), C = 2*GNS: the best of each rung is, over (gbs + C),
#   gbs 8, PP4: 22.627/0.20 = 113.14;  gbs 16, PP4: 64/0.32 = 200;  gbs 32, DP4: 181.0/0.64 = 282.84

TRACE = [
    24.0,  # too few iterations
    1.0,  # C = 2: 11.31, 11.11, 8.32: the current one is the best
    2.0,  # C = 4: 9.43, 10.00, 7.86: 6.1 % better is not enough
    4.0,  # C = 8: 7.07, 8.33, 7.07: 17.9 % better
    24.0,  # too few iterations since the switch
    16.0,  # C = 32: 16 has 4.167, 32 has 4.419: 6.1 % better
    24.0,  # C = 48: 3.125, 3.536: 13.1 % better
    1.0,  # too few iterations since the switch
    1.0,  # C = 2: 8.32 at 32, 11.31 at 8: 36 % better, down again
]


def test_chain_on_a_recorded_trace() -> None:
    assert walk(Copus(), problem(TableTimes(TIMES)), TRACE) == [
        (0, f"{PP4}-mbs1-gbs8"),
        (4, f"{PP4}-mbs1-gbs16"),
        (7, f"{DP4}-mbs1-gbs32"),
        (9, f"{PP4}-mbs1-gbs8"),
    ]


def test_calibration_scales_the_noise() -> None:
    # With c = 1 and twice the noise the same values come out.
    doubled = [2 * gns for gns in TRACE]
    expected = walk(Copus(), problem(TableTimes(TIMES)), TRACE)
    assert walk(Copus(c=1.0), problem(TableTimes(TIMES)), doubled) == expected


def test_starts_at_the_smallest_batch_that_can_run() -> None:
    without = {key: seconds for key, seconds in TIMES.items() if key[1] > 8}
    assert walk(Copus(), problem(TableTimes(without)), [])[0][1] == f"{PP4}-mbs1-gbs16"


def test_brings_its_learning_rate_unless_told_otherwise() -> None:
    assert policy("copus").lr_rule == "sqrt"
    assert policy("copus-lr_rule=linear").lr_rule == "linear"


@given(st.floats(1e-2, 1e4))
def test_at_equal_throughput_the_critical_batch_wins(critical: float) -> None:
    # sqrt(B)/(B + C) has its maximum at B = C.
    sizes = [critical * 2**k for k in range(-6, 7)]
    values = [math.sqrt(b) / (b + critical) for b in sizes]
    assert values.index(max(values)) == 6
    assert value(64, 64.0, 64.0) == pytest.approx(8 / 128)
