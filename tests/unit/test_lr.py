"""Learning rate: hand-computed values of every rule and of the schedule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.lr import LearningRate, batch_factor
from cona.specs import LearningRateSpec, ModelSpec, TrainingSpec


def make_model(**training: float) -> ModelSpec:
    settings = {"base_lr": 3e-4, "min_lr": 2e-4, "decay_tokens": 100_000, **training}
    return ModelSpec(
        name="m",
        description="test",
        family="gpt",
        num_layers=1,
        hidden_size=8,
        num_heads=1,
        num_kv_heads=1,
        ffn_size=8,
        vocab_size=8,
        seq_length=10,
        training=TrainingSpec(**settings),
        source="test",
    )


@pytest.mark.parametrize(
    ("rule", "gbs", "gns", "expected"),
    [
        ("constant", 64, None, 1.0),
        ("linear", 256, None, 32.0),  # 3e-4 * 32 = 9.6e-3, as method.md 5 says
        ("sqrt", 32, None, 2.0),
        ("power", 128, None, 2.0),
        ("piecewise", 32, None, 2.0),
        ("piecewise", 512, None, 4.0),  # (32/8)^.5 * (512/32)^.25
        ("adascale", 16, 8.0, 2 * 16 / 24),
        ("adascale", 16, None, 1.0),
        ("cona_adascale", 16, 8.0, 24 / 16),
    ],
)
def test_factor_by_hand(rule: str, gbs: int, gns: float | None, expected: float) -> None:
    assert batch_factor(rule, gbs, 8, gns) == pytest.approx(expected)  # type: ignore[arg-type]


def test_adascale_limits() -> None:
    # Johnson et al.: noiseless gradients gain nothing from a larger batch, noisy ones all of it.
    assert batch_factor("adascale", 64, 8, 1e-9) == pytest.approx(1.0)
    assert batch_factor("adascale", 64, 8, 1e9) == pytest.approx(8.0)
    assert batch_factor("cona_adascale", 64, 8, 1e9) == pytest.approx(1.0)
    assert batch_factor("adascale", 64, 8, math.inf) == 8.0
    assert batch_factor("cona_adascale", 64, 8, math.inf) == 1.0


def test_schedule_by_hand() -> None:
    lr = LearningRate(LearningRateSpec(rule="sqrt"), make_model())
    # Warm-up: 1 % of 100,000 tokens.
    assert lr.at(500, 1.0) == pytest.approx(1.5e-4)
    assert lr.at(1000, 1.0) == pytest.approx(3e-4)
    # Half of the remaining 99,000 tokens: the mean of peak and floor.
    assert lr.at(1000 + 49_500, 1.0) == pytest.approx(2.5e-4)
    assert lr.at(100_000, 1.0) == pytest.approx(2e-4)
    assert lr.at(500_000, 1.0) == pytest.approx(2e-4)


def test_floor_scales_unless_as_in_the_release() -> None:
    scaled = LearningRate(LearningRateSpec(scale_min=True), make_model())
    release = LearningRate(LearningRateSpec(scale_min=False), make_model())
    assert scaled.at(100_000, 2.0) == pytest.approx(4e-4)
    assert release.at(100_000, 2.0) == pytest.approx(2e-4)


def test_cap_and_tier_horizon() -> None:
    spec = LearningRateSpec(rule="linear", factor_max=4.0, decay_samples=50)
    lr = LearningRate(spec, make_model())
    assert lr.factor(256) == 4.0
    assert lr.decay_tokens == 500


def test_policy_rule_wins() -> None:
    lr = LearningRate(LearningRateSpec(rule="sqrt"), make_model(), rule="linear")
    assert lr.factor(64) == 8.0


@given(st.integers(1000, 300_000), st.integers(1, 1000), st.floats(0.5, 32))
def test_never_rises_after_warmup_and_stays_in_range(tokens: int, more: int, factor: float) -> None:
    lr = LearningRate(LearningRateSpec(), make_model())
    now, later = lr.at(tokens, factor), lr.at(tokens + more, factor)
    assert later <= now * (1 + 1e-12)
    assert factor * 2e-4 * (1 - 1e-12) <= later <= factor * 3e-4 * (1 + 1e-12)
    assert math.isfinite(later)
