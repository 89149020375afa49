"""Seesaw against dates and learning rates worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, problem, tiny_model
from walks import walk

from baselines.seesaw import Seesaw
from cona.lr import LearningRate
from cona.specs import LearningRateSpec, TrainingSpec

# The tiny model: peak 0.01, end 0.001, 1000 samples of 16 tokens, of which 10 are warm-up. With
# d = (samples - 10)/990 the reference is 0.001 + 0.009*(1 + cos(pi*d))/2. It is
#   0.005   at cos = -1/9:       d = 0.53544, 540.1 samples
#   0.0025  at cos = -2/3:       d = 0.73228, 735.0 samples
#   0.00125 at cos = -17/18:     d = 0.89338, 894.4 samples
HALVINGS = (540.1, 735.0, 894.4)
# With its end at zero: cos = 0, -1/2, -3/4: d = 0.5, 0.66667, 0.76995.
HALVINGS_TO_ZERO = (505.0, 670.0, 772.2)


def rate(reference: str = "model") -> LearningRate:
    rule = "seesaw" if reference == "model" else "seesaw_to_zero"
    return LearningRate(LearningRateSpec(decay_samples=1000), tiny_model(), rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(("reference", "dates"), [("model", HALVINGS), ("zero", HALVINGS_TO_ZERO)])
def test_halvings_by_hand(reference: str, dates: tuple[float, ...]) -> None:
    for count, samples in enumerate(dates, start=1):
        before, after = int((samples - 0.1) * 16), math.ceil((samples + 0.1) * 16)
        assert rate(reference).num_halvings(before) == count - 1
        assert rate(reference).num_halvings(after) == count


def test_rate_falls_by_sqrt_2_while_the_batch_doubles_and_then_by_2() -> None:
    lr = rate()
    assert lr.at(80, lr.factor(8)) == pytest.approx(0.005)  # half of the warm-up
    assert lr.at(16 * 500, lr.factor(8)) == pytest.approx(0.01)
    assert lr.at(16 * 600, lr.factor(16)) == pytest.approx(0.01 / math.sqrt(2))
    assert lr.at(16 * 800, lr.factor(32)) == pytest.approx(0.005)
    assert lr.at(16 * 900, lr.factor(32)) == pytest.approx(0.0025)  # the batch cannot double


def test_chain_by_hand() -> None:
    # At gbs 8 the iteration that ends at 544 samples is the first past 540.1: switch at 536, after
    # 67 iterations. At gbs 16: 536 + 16*13 = 744 is the first past 735.0: switch at 728, after 12.
    chain = walk(Seesaw(), problem(TableTimes(TABLE)), [1.0] * 100)
    assert chain == [
        (0, f"{PP4}-mbs1-gbs8"),
        (67, f"{PP4}-mbs1-gbs16"),
        (79, f"{DP4}-mbs1-gbs32"),
    ]


def test_a_shallow_cosine_never_halves_unless_it_ends_at_zero() -> None:
    # GPT-3 1.3B: from 3e-4 to 2e-4.
    training = TrainingSpec(base_lr=3e-4, min_lr=2e-4, decay_tokens=16_000)
    spec, model = LearningRateSpec(), tiny_model(training=training)
    assert LearningRate(spec, model, "seesaw").num_halvings(10**9) == 0
    assert LearningRate(spec, model, "seesaw_to_zero").num_halvings(10**9) == 10


def test_brings_its_learning_rate() -> None:
    assert Seesaw().lr_rule == "seesaw"
    assert Seesaw(reference="zero").lr_rule == "seesaw_to_zero"


@given(st.integers(0, 20_000), st.integers(0, 5_000), st.sampled_from(["model", "zero"]))
def test_rate_never_rises_and_stays_above_the_reference(
    tokens: int, more: int, reference: str
) -> None:
    lr = rate(reference)
    now, later = lr.num_halvings(tokens), lr.num_halvings(tokens + more)
    assert 0 <= now <= later
    if reference == "model" and tokens >= 160:
        plain = LearningRate(LearningRateSpec(decay_samples=1000), tiny_model(), "sqrt")
        assert plain.at(tokens, 1.0) * (1 - 1e-6) <= lr.at(tokens, 1.0) <= 0.01
        assert lr.at(tokens, 1.0) < 2 * plain.at(tokens, 1.0) * (1 + 1e-6)
