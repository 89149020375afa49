"""Centres and intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.analysis.statistics import log_t_interval, median_reached


def test_median_counts_an_unreached_seed_as_slowest():
    assert median_reached([3.0, 1.0, 2.0]) == 2.0
    assert median_reached([3.0, None, 2.0]) == 3.0
    assert median_reached([None, None, 2.0]) is None
    assert median_reached([1.0, None]) is None
    assert median_reached([]) is None


def test_t_interval_by_hand():
    # logs .693147 .405465 .223144: mean .440585, s .236961, t(.975, 2) = 4.302653
    low, high = log_t_interval([2.0, 1.5, 1.25])
    assert (low, high) == (pytest.approx(0.86238, rel=1e-4), pytest.approx(2.79890, rel=1e-4))


def test_no_interval_with_fewer_than_three_seeds():
    assert log_t_interval([2.0, 1.5]) is None
    assert log_t_interval([2.0]) is None


ratios = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=8)


@given(ratios)
def test_interval_holds_the_geometric_mean_and_inverts_with_the_ratios(values):
    low, high = log_t_interval(values)
    mean = math.exp(sum(map(math.log, values)) / len(values))
    assert low <= mean * (1 + 1e-12) and mean <= high * (1 + 1e-12)
    low_inverse, high_inverse = log_t_interval([1 / v for v in values])
    assert low_inverse == pytest.approx(1 / high)
    assert high_inverse == pytest.approx(1 / low)


@given(st.floats(0.1, 10.0), st.integers(3, 6))
def test_equal_ratios_have_an_interval_of_no_width(value, count):
    assert log_t_interval([value] * count) == pytest.approx((value, value))
