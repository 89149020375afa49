"""The order of strategies, their bottleneck in words, and the crossing to the next batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from cost_cases import GPT, PAPER, strategy
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import time_model, time_models
from cona.cost.ranking import (
    PART_WORDS,
    Ranked,
    memory_bytes,
    next_batch,
    part_words,
    rank,
)
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques
from cona.surrogate import phi


class Listed:
    """A time model that is a list: mbs -> seconds; a missing mbs is infeasible."""

    name = "listed"

    def __init__(self, times_s: dict[int, float]) -> None:
        self.known_s = times_s

    def time_s(self, strategy: Strategy) -> float:
        if rule := self.why_not(strategy):
            raise ConfigError(rule)
        return self.known_s[strategy.mbs]

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.array([self.time_s(s) for s in strategies])

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"compute": self.time_s(strategy)}

    def why_not(self, strategy: Strategy) -> str | None:
        return None if strategy.mbs in self.known_s else "it is not listed"

    def origin(self, strategy: Strategy) -> str:
        return "model"


def ranked(gbs: int = 64, zero_stage: int = 0, **parts_s: float) -> Ranked:
    one = Strategy(dp=4, tp=1, pp=1, mbs=1, gbs=gbs, techniques=Techniques(zero_stage=zero_stage))
    total = sum(parts_s.values())
    return Ranked(strategy=one, iteration_s=total, parts_s=parts_s, memory_bytes=None)


SIZES = [strategy(1, 1, 1, mbs, 64) for mbs in (1, 2, 4, 8, 16, 32, 64)]


@given(
    times_s=st.dictionaries(
        st.sampled_from([s.mbs for s in SIZES]), st.floats(0.01, 100), min_size=1
    ),
    top=st.integers(1, 8),
)
def test_the_fastest_feasible_come_first(times_s: dict[int, float], top: int) -> None:
    found = rank(SIZES, Listed(times_s), top)
    assert [one.iteration_s for one in found] == sorted(times_s.values())[:top]
    assert {one.strategy.mbs for one in found} <= times_s.keys()


def test_a_tie_keeps_the_order_of_the_candidates() -> None:
    found = rank(SIZES, Listed({8: 1.0, 2: 1.0, 4: 0.5}), 3)
    assert [one.strategy.mbs for one in found] == [4, 2, 8]


def test_nothing_feasible_counts_rules_without_their_numbers() -> None:
    """Four different amounts of memory are one rule, and outnumber three times another."""

    class Full(Listed):
        def why_not(self, strategy: Strategy) -> str:
            is_large = strategy.mbs > 4
            return f"it needs {strategy.mbs}.5 GB of memory" if is_large else "it is small"

    with pytest.raises(ConfigError, match=r"mbs8-gbs64: it needs 8.5 GB of memory; so do ZeRO"):
        rank(SIZES, Full({}), 1)


def test_nothing_feasible_names_the_commonest_rule() -> None:
    with pytest.raises(ConfigError, match="none of 7 .* dp1-tp1-pp1-mbs1-gbs64: it is not listed"):
        rank(SIZES, Listed({}), 1)
    with pytest.raises(ConfigError, match="no strategy to choose from"):
        rank([], Listed({}), 1)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (ranked(compute=3, dp_comm=4.1, head=2.9), "dp all-reduce is 41 % of the iteration"),
        (
            ranked(zero_stage=1, compute=1, dp_comm=3),
            "dp reduce-scatter and all-gather is 75 % of the iteration",
        ),
        (
            ranked(compute=5, bubble=3, head=2),
            "compute is 50 % of the iteration, then pipeline bubble 30 %",
        ),
        (ranked(compute=5, bubble=0), "compute is 100 % of the iteration"),
    ],
)
def test_the_bottleneck_in_words(one: Ranked, words: str) -> None:
    assert one.bottleneck == words


def test_every_part_of_the_models_has_words() -> None:
    for name in time_models():
        parts = time_model(name, GPT, PAPER).breakdown(strategy(2, 2, 1, 1, 8))
        assert parts.keys() <= PART_WORDS.keys(), name
    assert part_words("something", SIZES[0]) == "something"


def test_a_name_tells_the_techniques() -> None:
    techniques = Techniques(
        zero_stage=1,
        recompute="full",
        sequence_parallel=True,
        virtual_stages=2,
        context_parallel=4,
    )
    one = Strategy(dp=1, tp=2, pp=2, mbs=1, gbs=8, techniques=techniques)
    named = Ranked(strategy=one, iteration_s=1, parts_s={"compute": 1}, memory_bytes=None).name
    assert named == "dp1-tp2-pp2-mbs1-gbs8 zero1 recompute-full sp vpp2 cp4"
    assert ranked(compute=1).name == "dp4-tp1-pp1-mbs1-gbs64"


@given(time_s=st.floats(0.1, 10), growth=st.floats(1.01, 1.99))
def test_at_the_crossing_both_batches_are_equally_good(time_s: float, growth: float) -> None:
    small, large = ranked(64, compute=time_s), ranked(128, compute=time_s * growth)
    crossing = next_batch(small, large)
    here = phi(64, time_s, crossing.gns)
    assert phi(128, time_s * growth, crossing.gns) == pytest.approx(here, rel=1e-9)
    above = 2 * crossing.gns
    assert phi(128, time_s * growth, above) > phi(64, time_s, above)
    assert crossing.sentence.startswith("gbs 128 wins above a GNS of")


def test_a_crossing_by_hand_and_its_two_ends() -> None:
    crossing = next_batch(ranked(64, compute=1.0), ranked(128, compute=1.5))
    assert crossing.gns == pytest.approx(64 * 128 * 0.5 / (128 * 1.0 - 64 * 1.5))  # 128
    assert crossing.sentence == "gbs 128 wins above a GNS of 128 samples"
    always = next_batch(ranked(64, compute=1.0), ranked(128, compute=1.0))
    assert (always.gns, "every GNS" in always.sentence) == (0.0, True)
    never = next_batch(ranked(64, compute=1.0), ranked(128, compute=2.0))
    assert (never.gns, "no GNS" in never.sentence) == (math.inf, True)


def test_memory_is_the_models_own() -> None:
    model = time_model("calculon", GPT, PAPER)
    one = strategy(2, 2, 1, 4, 64)
    assert rank([one], model, 1)[0].memory_bytes == model.memory.memory_bytes(one)
    assert memory_bytes(Listed({}), one) is None
