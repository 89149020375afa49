"""Exhaustive search: the smallest T among the feasible, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import ConfigError
from cona.search import best
from cona.strategy import Strategy

MANY = [Strategy(dp=1, tp=1, pp=1, mbs=mbs, gbs=64) for mbs in (1, 2, 4, 8, 16, 32)]


class Table:
    """A time model from a table: what it does not list is infeasible."""

    name = "table"

    def __init__(self, seconds: dict[Strategy, float]) -> None:
        self.seconds = seconds

    def time_s(self, strategy: Strategy) -> float:
        return self.seconds[strategy]

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.array([self.seconds[s] for s in strategies], float)

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"measured": self.seconds[strategy]}

    def why_not(self, strategy: Strategy) -> str | None:
        return None if strategy in self.seconds else "it was never measured"


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, None]), min_size=6, max_size=6).filter(any))
def test_best_is_the_first_of_the_fastest_feasible(seconds: list[float | None]) -> None:
    table = {s: t for s, t in zip(MANY, seconds, strict=True) if t is not None}
    winner, winner_s = best(MANY, Table(table))
    assert winner_s == min(table.values())
    assert winner == next(s for s in MANY if table.get(s) == winner_s)
    assert type(winner_s) is float


def test_without_a_feasible_strategy_the_reason_is_told() -> None:
    with pytest.raises(ConfigError, match=r"none of 6 .* dp1-tp1-pp1-mbs1-gbs64: it was never"):
        best(MANY, Table({}))


def test_without_any_strategy_the_rule_is_told() -> None:
    with pytest.raises(ConfigError, match="no layout of the GPUs divides"):
        best([], Table({}))


def test_where_nothing_fits_the_strategy_that_needs_least_is_named() -> None:
    class Full(Table):
        def memory_bytes(self, strategy: Strategy) -> float:
            return {1: 3e9, 2: 1e9, 4: 2e9}[strategy.mbs]

        def why_not(self, strategy: Strategy) -> str | None:
            return f"needs {self.memory_bytes(strategy) / 1e9:.0f} GB"

    strategies = [Strategy(dp=1, tp=1, pp=1, mbs=mbs, gbs=8) for mbs in (1, 2, 4)]
    with pytest.raises(ConfigError, match="closest was dp1-tp1-pp1-mbs2-gbs8: needs 1 GB"):
        best(strategies, Full({}))
