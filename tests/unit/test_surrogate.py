"""Phi, R and GNS*: hand-computed values and the identities between them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.surrogate import crossing_gns, phi, ratio, throughput

times = st.floats(0.01, 100)
rungs = st.sampled_from([(8, 16), (16, 64), (8, 256), (64, 128)])


def test_by_hand() -> None:
    # B 8 -> 16 with T 0.2 -> 0.3 s: throughput 40 -> 53.33; at GNS 24: Phi = 40/32 and 53.33/40.
    assert throughput(8, 0.2) == pytest.approx(40)
    assert phi(8, 0.2, 24) == pytest.approx(1.25)
    assert phi(16, 0.3, 24) == pytest.approx(4 / 3)
    assert ratio(8, 0.2, 16, 0.3, 1 / 24) == pytest.approx((4 / 3) / 1.25)
    # GNS* = 8*16*(0.3-0.2)/(16*0.2 - 8*0.3) = 12.8/0.8 = 16
    assert crossing_gns(8, 0.2, 16, 0.3) == pytest.approx(16)


def test_never_and_always() -> None:
    assert crossing_gns(8, 0.2, 16, 0.4) == math.inf
    assert crossing_gns(8, 0.2, 16, 0.5) == math.inf
    assert crossing_gns(8, 0.2, 16, 0.2) == 0.0
    assert crossing_gns(8, 0.2, 16, 0.1) == 0.0


@given(rungs, times, times, st.floats(0.1, 1e5))
def test_r_is_the_quotient_of_phi(pair: tuple[int, int], t1: float, t2: float, gns: float) -> None:
    expected = phi(pair[1], t2, gns) / phi(pair[0], t1, gns)
    assert ratio(pair[0], t1, pair[1], t2, 1 / gns) == pytest.approx(expected, rel=1e-9)


@given(rungs, times, times)
def test_r_crosses_one_at_gns_star(pair: tuple[int, int], t1: float, t2: float) -> None:
    star = crossing_gns(pair[0], t1, pair[1], t2)
    if star == math.inf:
        assert ratio(pair[0], t1, pair[1], t2, 0.0) <= 1 + 1e-12
    elif star == 0.0:
        assert ratio(pair[0], t1, pair[1], t2, 1e6) >= 1 - 1e-12
    else:
        assert ratio(pair[0], t1, pair[1], t2, 1 / star) == pytest.approx(1, rel=1e-6)
        assert ratio(pair[0], t1, pair[1], t2, 0.9 / star) > 1
        assert ratio(pair[0], t1, pair[1], t2, 1.1 / star) < 1


@given(rungs, times, times, st.floats(1e-3, 1e3), st.floats(-1e2, 1e2))
def test_linear_form_has_the_sign_of_r_minus_one(
    pair: tuple[int, int], t1: float, t2: float, x: float, y: float
) -> None:
    # method.md 3b: R > 1 if and only if a*tr_sigma - c*mu_sq > 0 (for mu_sq > 0).
    if y <= 1e-3:
        return
    b1, b2 = pair
    a = b2 * t1 - b1 * t2
    c = b1 * b2 * (t2 - t1)
    margin = a * x - c * y
    r = ratio(b1, t1, b2, t2, y / x)
    if abs(r - 1) > 1e-9:
        assert (margin > 0) == (r > 1)
