"""The gradient noise scale: hand-computed values, unbiasedness, smoothing and its interval."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import ConfigError
from cona.gns import NO_ESTIMATE, GradientNoiseScale, GradientTerms, gradient_terms

terms = st.builds(
    GradientTerms,
    tr_sigma=st.floats(0.1, 1e3),
    mu_sq=st.floats(-1e2, 1e2).filter(lambda y: abs(y) > 1e-3),
)
batches = st.sampled_from([8, 16, 32, 64])


def test_terms_by_hand() -> None:
    # Two micro-batches of 4 samples with gradients (3, 0) and (1, 2): G = (2, 1), |G|^2 = 5,
    # mean |g_i|^2 = (9 + 5)/2 = 7. tr_sigma = (7 - 5)*8/1 = 16, mu_sq = (2*5 - 7)/1 = 3.
    result = gradient_terms(7.0, math.sqrt(5), num_microbatches=2, gbs=8)
    assert result is not None
    assert result.tr_sigma == pytest.approx(16)
    assert result.mu_sq == pytest.approx(3)


@pytest.mark.parametrize(
    ("mean_sq", "norm", "n"),
    [(None, 1.0, 4), (1.0, 1.0, 1), (math.nan, 1.0, 4), (1.0, math.inf, 4)],
)
def test_no_terms_where_not_measurable(mean_sq: float | None, norm: float, n: int) -> None:
    assert gradient_terms(mean_sq, norm, n, gbs=8) is None


def test_terms_are_unbiased() -> None:
    rng = np.random.default_rng(0)
    dim, b, n, sigma = 50, 4, 4, 0.7
    mu = np.full(dim, 0.1)
    collected = []
    for _ in range(4000):
        g = mu + rng.normal(0, sigma / math.sqrt(b), (n, dim))
        norm = float(np.linalg.norm(g.mean(axis=0)))
        result = gradient_terms(float((g**2).sum(axis=1).mean()), norm, n, n * b)
        assert result is not None
        collected.append((result.tr_sigma, result.mu_sq))
    tr_sigma, mu_sq = np.mean(collected, axis=0)
    assert tr_sigma == pytest.approx(dim * sigma**2, rel=0.02)
    assert mu_sq == pytest.approx(dim * 0.01, rel=0.05)


def test_smoothing_by_hand() -> None:
    # decay 0.5 per sample and gbs 1: weights of two terms are (0.25, 0.5)/0.75 = (1/3, 2/3).
    gns = GradientNoiseScale(0.5)
    gns.update(GradientTerms(tr_sigma=3.0, mu_sq=1.0), 1)
    gns.update(GradientTerms(tr_sigma=6.0, mu_sq=2.5), 1)
    estimate = gns.estimate()
    assert estimate.tr_sigma == pytest.approx(5.0)
    assert estimate.mu_sq == pytest.approx(2.0)
    assert estimate.gns == pytest.approx(2.5)
    # q = 1/9 + 4/9 = 5/9; V_xx = (1/9*(3-5)^2 + 4/9*(6-5)^2)/(4/9) = (4/9 + 4/9)*9/4 = 2;
    # V_yy = (1/9*1 + 4/9*0.25)*9/4 = 0.5; V_xy = (1/9*(-2)(-1) + 4/9*(1)(0.5))*9/4 = 1.
    assert estimate.var_xx == pytest.approx(2.0)
    assert estimate.var_yy == pytest.approx(0.5)
    assert estimate.var_xy == pytest.approx(1.0)
    # Var(log GNS) = 2/25 + 0.5/4 - 2*1/(5*2) = 0.005
    assert estimate.se_log == pytest.approx(math.sqrt(0.005))
    low, high = estimate.interval(z=2.0)
    assert low == pytest.approx(2.5 * math.exp(-2 * math.sqrt(0.005)))
    assert high == pytest.approx(2.5 * math.exp(2 * math.sqrt(0.005)))


@given(st.lists(st.tuples(terms, batches), min_size=1, max_size=30))
def test_smoothing_equals_the_definition(history: list[tuple[GradientTerms, int]]) -> None:
    gns = GradientNoiseScale(0.99)
    for term, gbs in history:
        gns.update(term, gbs)
    decays = np.array([0.99**gbs for _, gbs in history])
    later = np.concatenate([np.cumprod(decays[::-1])[::-1][1:], [1.0]])
    w = (1 - decays) * later
    w /= w.sum()
    x = np.array([t.tr_sigma for t, _ in history])
    y = np.array([t.mu_sq for t, _ in history])
    xb, yb = float(w @ x), float(w @ y)
    estimate = gns.estimate()
    assert estimate.tr_sigma == pytest.approx(xb, rel=1e-9)
    assert estimate.mu_sq == pytest.approx(yb, rel=1e-9, abs=1e-9)
    if len(history) > 1:
        q = float(w @ w)
        expected = float((w**2) @ ((x - xb) * (y - yb))) / (1 - q)
        assert estimate.var_xy == pytest.approx(expected, rel=1e-6, abs=1e-5)
        expected = float((w**2) @ (x - xb) ** 2) / (1 - q)
        assert estimate.var_xx == pytest.approx(expected, rel=1e-6, abs=1e-5)


@given(st.lists(terms, min_size=1, max_size=10))
def test_smoothing_does_not_depend_on_how_samples_are_batched(history: list[GradientTerms]) -> None:
    # The same term seen twice at gbs 8 weighs as much as once at gbs 16.
    fine, coarse = GradientNoiseScale(0.99), GradientNoiseScale(0.99)
    for term in history:
        fine.update(term, 8)
        fine.update(term, 8)
        coarse.update(term, 16)
    assert fine.estimate().tr_sigma == pytest.approx(coarse.estimate().tr_sigma, rel=1e-9)
    assert fine.estimate().mu_sq == pytest.approx(coarse.estimate().mu_sq, rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(terms, batches), min_size=2, max_size=20), st.integers(0, 20))
def test_state_continues_exactly(history: list[tuple[GradientTerms, int]], at: int) -> None:
    whole, part = GradientNoiseScale(), GradientNoiseScale()
    for i, (term, gbs) in enumerate(history):
        whole.update(term, gbs)
        if i == at % len(history):
            part = part.copy()
            restored = GradientNoiseScale(0.5)
            restored.load_state_dict(part.state_dict())
            part = restored
        part.update(term, gbs)
    assert part.estimate() == whole.estimate()


def test_interval_of_known_coverage() -> None:
    # The 90 % interval of independent terms holds the true ratio in about 90 % of trials.
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        gns = GradientNoiseScale(0.999)
        for _ in range(100):
            term = GradientTerms(
                tr_sigma=float(rng.gamma(20, 2.0)), mu_sq=float(rng.normal(1.0, 0.8))
            )
            gns.update(term, 16)
        low, high = gns.estimate().interval()
        assert low is not None
        hits += low <= 40.0 <= (math.inf if high is None else high)
    assert 0.84 <= hits / 300 <= 0.95


def test_negative_signal_gives_no_estimate() -> None:
    gns = GradientNoiseScale()
    gns.update(GradientTerms(tr_sigma=5.0, mu_sq=-1.0), 8)
    assert gns.estimate().gns is None
    assert gns.estimate().interval() == (None, None)


def test_wide_interval_is_unbounded_above() -> None:
    gns = GradientNoiseScale()
    for x, y in [(1.0, 0.1), (9.0, 5.0), (2.0, 0.2), (8.0, -2.0)]:
        gns.update(GradientTerms(tr_sigma=x, mu_sq=y), 8)
    low, high = gns.estimate().interval()
    assert low is not None
    assert high is None


def test_dropped_terms_are_counted_and_change_nothing() -> None:
    gns = GradientNoiseScale()
    assert gns.estimate() == NO_ESTIMATE
    gns.update(None, 8)
    assert gns.estimate() == NO_ESTIMATE
    assert gns.num_dropped == 1


def test_decay_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"decay_per_sample 1\.0"):
        GradientNoiseScale(1.0)


@given(st.lists(st.tuples(terms, batches), min_size=3, max_size=8), st.floats(0.01, 100))
def test_noisier_gradients_scale_the_gns_and_keep_its_relative_error(
    seen: list[tuple[GradientTerms, int]], factor: float
) -> None:
    gns, noisier = GradientNoiseScale(0.999), GradientNoiseScale(0.999)
    for term, gbs in seen:
        gns.update(term, gbs)
        noisier.update(replace(term, tr_sigma=term.tr_sigma * factor), gbs)
    scaled, expected = gns.estimate().scaled(factor), noisier.estimate()
    for name in ("tr_sigma", "mu_sq", "var_xx", "var_yy", "var_xy"):
        value = getattr(expected, name)
        # Variances come from differences of sums: their rounding errors have the sums' size.
        assert getattr(scaled, name) == pytest.approx(value, rel=1e-6, abs=1e-6 * factor**2)
    assert scaled.num_terms == expected.num_terms
