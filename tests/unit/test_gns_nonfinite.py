"""The noise scale of gradients that are no numbers: no estimate, never a wrong one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.gns import (
    NO_ESTIMATE,
    GnsEstimate,
    GradientNoiseScale,
    GradientTerms,
    gradient_terms,
)
from cona.segments import Step
from cona.walk import frozen_gns

anything = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -1.0, 1e-320, 1e200, -1e308, math.nan, math.inf, -math.inf]),
)
NAN, INF = math.nan, math.inf


def is_none_or_number(value: float | None) -> bool:
    return value is None or math.isfinite(value)


@pytest.mark.parametrize(
    ("sum_sq", "norm", "n"),
    [
        (NAN, 1.0, 4),
        (INF, 1.0, 4),
        (1.0, NAN, 4),
        (1.0, INF, 4),
        (INF, INF, 4),  # one micro-batch overflowed, and so did the batch
        (1.0, 1e200, 4),  # its square is beyond a float
        (2.0, 1.0, 1),
        (2.0, 1.0, 0),
        (None, 1.0, 4),
    ],
)
def test_no_terms(sum_sq: float | None, norm: float, n: int) -> None:
    assert gradient_terms(sum_sq, norm, n, 8) is None


@given(anything, anything, st.integers(0, 64), st.integers(1, 512))
def test_terms_are_numbers_or_nothing(sum_sq: float, norm: float, n: int, gbs: int) -> None:
    terms = gradient_terms(sum_sq, norm, n, gbs)
    assert terms is None or (math.isfinite(terms.tr_sigma) and math.isfinite(terms.mu_sq))


@given(st.lists(st.tuples(anything, anything, st.sampled_from([8, 64])), max_size=12))
def test_an_estimate_is_a_number_or_nothing(history: list[tuple[float, float, int]]) -> None:
    gns = GradientNoiseScale(0.99)
    for x, y, gbs in history:
        gns.update(GradientTerms(tr_sigma=x, mu_sq=y), gbs)
    assert gns.num_terms + gns.num_dropped == len(history)
    check(gns.estimate())
    check(gns.estimate().scaled(16.0))
    assert frozen_gns(gns) is None or not math.isnan(frozen_gns(gns) or 0.0)
    json.dumps(gns.state_dict(), allow_nan=False)


def check(estimate: GnsEstimate) -> None:
    assert estimate.gns is None or 0 <= estimate.gns < math.inf
    assert estimate.se_log is None or estimate.se_log >= 0
    low, high = estimate.interval()
    assert is_none_or_number(low)
    assert is_none_or_number(high)


@given(*[anything] * 5, st.integers(0, 3))
def test_whatever_the_moments_are(
    x: float, y: float, xx: float, yy: float, xy: float, num_terms: int
) -> None:
    fields = {"tr_sigma": x, "mu_sq": y, "var_xx": xx, "var_yy": yy, "var_xy": xy}
    check(GnsEstimate(num_terms=num_terms, **fields))


def test_dropped_terms_leave_the_estimate_of_the_others() -> None:
    clean, dirty = GradientNoiseScale(), GradientNoiseScale()
    for i in range(10):
        terms = GradientTerms(tr_sigma=5.0 + i % 3, mu_sq=1.0 + i % 2)
        clean.update(terms, 8)
        dirty.update(terms, 8)
        dirty.update(GradientTerms(tr_sigma=NAN, mu_sq=1.0), 8)
        dirty.update(GradientTerms(tr_sigma=1.0, mu_sq=-INF), 8)
        dirty.update(None, 8)
    assert dirty.estimate() == clean.estimate()
    assert (dirty.num_terms, dirty.num_dropped) == (10, 30)


def test_nothing_is_known_when_every_term_was_dropped() -> None:
    gns = GradientNoiseScale()
    for _ in range(5):
        gns.update(GradientTerms(tr_sigma=INF, mu_sq=NAN), 8)
    assert gns.estimate() == NO_ESTIMATE
    assert not gns.estimate().is_known
    assert (gns.estimate().gns, gns.estimate().interval()) == (None, (None, None))
    assert frozen_gns(gns) is None


def test_a_skipped_update_gives_no_terms_although_they_were_measured() -> None:
    step = Step(
        iteration=1,
        samples=8,
        loss_nats=1.0,
        num_tokens=1,
        lr=0.1,
        grad_norm=1.0,
        tr_sigma=16.0,
        mu_sq=3.0,
        skipped=False,
    )
    assert step.terms == GradientTerms(tr_sigma=16.0, mu_sq=3.0)
    assert replace(step, skipped=True).terms is None
