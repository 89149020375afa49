"""The knapsack over layers, against every choice there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cona.planners.knapsack import Knapsack

GROUPS = (0, 0, 1)


@st.composite
def knapsacks(draw: st.DrawFn) -> Knapsack:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 4)), len(GROUPS)
    relayout = rng.integers(0, 4, (2, 2)).astype(float)
    np.fill_diagonal(relayout, 0.0)
    return Knapsack(
        seconds=rng.integers(1, 9, shape).astype(float),
        units=rng.integers(0, 5, shape),
        groups=GROUPS,
        relayout_s=relayout,
    )


def time_s(question: Knapsack, choice: tuple[int, ...]) -> float:
    groups = [GROUPS[index] for index in choice]
    return sum(question.seconds[i, k] for i, k in enumerate(choice)) + sum(
        question.relayout_s[a, b] for a, b in itertools.pairwise(groups)
    )


def units(question: Knapsack, choice: tuple[int, ...]) -> int:
    return sum(int(question.units[i, k]) for i, k in enumerate(choice))


@settings(max_examples=150, deadline=None)
@given(question=knapsacks(), budget=st.integers(-1, 20))
def test_the_choice_is_the_fastest_that_fits(question: Knapsack, budget: int) -> None:
    every = itertools.product(range(len(GROUPS)), repeat=len(question.seconds))
    fitting = [choice for choice in every if units(question, choice) <= budget]
    found = question.best(budget)
    assert (found is None) == (not fitting)
    if found:
        assert found in fitting
        assert time_s(question, found) == pytest.approx(min(time_s(question, c) for c in fitting))


def test_three_layers_by_hand() -> None:
    question = Knapsack(
        seconds=np.array([[1.0, 3.0]] * 3),
        units=np.array([[4, 1]] * 3),
        groups=(0, 1),
        relayout_s=np.array([[0.0, 0.5], [0.5, 0.0]]),
    )
    # 12 units: all fast, 3 s. 9: one slow layer, at an end, since there it changes layout once.
    assert question.best(12) == (0, 0, 0)
    assert question.best(9) in ((1, 0, 0), (0, 0, 1))
    assert question.best(3) == (1, 1, 1)
    assert question.best(2) is None
