"""Pollux against decisions worked out by hand, and its throughput model against known ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import estimate, observe, problem
from walks import walk

from baselines.pollux import Pollux
from cona.cost.throughput_fit import StepTimes, step_s
from cona.errors import ConfigError
from cona.strategy import Strategy


class Steps:
    """T = s*T_accum + (T_accum^g + T_net^g)^(1/g), T_accum = a + b*mbs; dp4, at most 4 samples.

    Args:
        parameters: a (s), b (s per sample), T_net (s).
        overlap: g.
        min_tp: a layout fits into memory from this tensor-parallel degree on.
    """

    name = "steps"

    def __init__(
        self,
        parameters: tuple[float, float, float] = (0.1, 0.05, 0.1),
        overlap: float = 1.0,
        min_tp: int = 1,
    ) -> None:
        self.parameters, self.overlap, self.min_tp = np.array(parameters), overlap, min_tp

    def time_s(self, s: Strategy) -> float:
        sizes = np.array(float(s.mbs)), np.array(float(s.num_microbatches))
        return float(step_s(self.parameters, self.overlap, *sizes))

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.array([self.time_s(s) for s in strategies])

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"compute": self.time_s(strategy)}

    def why_not(self, strategy: Strategy) -> str | None:
        fits = strategy.mbs <= 4 and strategy.tp >= self.min_tp
        return None if fits else "too large"

    def origin(self, strategy: Strategy) -> str:
        return "model"


FIRST, LARGER = "dp4-tp1-pp1-mbs2-gbs8", "dp4-tp1-pp1-mbs4-gbs16"
# The first iteration, T = 0.1 + 0.05*2 + 0.1 = 0.3 s at mbs 2, is split into thirds: a = 0.1,
# b = 0.05, T_net = 0.1. So T = s*(0.1 + 0.05*mbs) + 0.2 + 0.05*mbs, and of the sizes 8, 12, ... 32
#   gbs 8,  mbs 2: 0.30 s;  gbs 12, mbs 3: 0.35 s;  gbs 16, mbs 4: 0.40 s
#   gbs 24, mbs 3, one accumulation step: 0.25 + 0.35 = 0.60 s;  gbs 32, mbs 4: 0.30 + 0.40 = 0.70 s
# goodput = gbs/T * (8 + GNS)/(gbs + GNS).


def test_chain_on_a_recorded_trace() -> None:
    trace = [
        16.0,  # too few iterations
        4.0,  # 26.67 at 8, 25.71 at 12: stay
        4.0,  # too few iterations since the last look
        9.0,  # 26.67 at 8, 27.76 at 12, 27.2 at 16: 4.1 % is not enough
        9.0,
        16.0,  # 26.67 at 8, 29.39 at 12, 30 at 16, 24 at 24, 22.86 at 32: 12.5 % better
        16.0,
        16.0,  # what was seen at 16 (0.4 s) is as believed: stay
        1.0,
        1.0,  # 40*9/17 = 21.18 at 16, 26.67 at 8: 25.9 % better
    ]
    assert walk(Pollux(), problem(Steps()), trace) == [(0, FIRST), (6, LARGER), (10, FIRST)]


def test_gain_and_belief_are_logged() -> None:
    policy = Pollux()
    first = policy.start(problem(Steps()))
    policy.decide(observe(first, 1, estimate(16.0), iteration_s=0.3))
    decision = policy.decide(observe(first, 2, estimate(16.0), iteration_s=0.3))
    assert decision.details["gain"] == pytest.approx(30 / (80 / 3))
    assert decision.details["t_next_s"] == pytest.approx(0.4)
    assert decision.details["next"] == LARGER


def test_plans_by_what_it_saw_and_not_by_the_belief() -> None:
    # Larger micro-batches take far longer than the first iteration suggested: back again.
    policy = Pollux()
    first = policy.start(problem(Steps()))
    policy.decide(observe(first, 1, estimate(16.0), iteration_s=0.3))
    larger = policy.decide(observe(first, 2, estimate(16.0), iteration_s=0.3)).strategy
    assert larger is not None
    policy.decide(observe(larger, 3, estimate(16.0), iteration_s=0.9))
    decision = policy.decide(observe(larger, 4, estimate(16.0), iteration_s=0.9))
    assert decision.strategy is not None
    assert decision.strategy.gbs < larger.gbs


def test_waits_for_a_noise_scale() -> None:
    policy = Pollux()
    first = policy.start(problem(Steps()))
    unknown = estimate(16.0, mu_sq=-1.0)
    policy.decide(observe(first, 1, unknown, iteration_s=0.3))
    assert policy.decide(observe(first, 2, unknown, iteration_s=0.3)).strategy is None


def test_takes_the_least_model_parallelism_that_fits() -> None:
    assert str(Pollux().start(problem(Steps(min_tp=2))).layout) == "dp2-tp2-pp1"
    with pytest.raises(ConfigError, match="none of .* strategies is feasible"):
        Pollux().start(problem(Steps(min_tp=8)))


def strategy(mbs: int, num_microbatches: int, dp: int = 4) -> Strategy:
    return Strategy(dp=dp, tp=1, pp=1, mbs=mbs, gbs=dp * mbs * num_microbatches)


@pytest.mark.parametrize("dp", [1, 4])
def test_one_observation_is_explained_exactly(dp: int) -> None:
    times = StepTimes()
    times.add(strategy(2, 1, dp), 0.3)
    fit = times.fit()
    assert fit(strategy(2, 1, dp)) == pytest.approx(0.3)
    # Without replicas there is no network: a = 0.15, b = 0.075.
    assert fit(strategy(4, 1, dp)) == pytest.approx(0.4 if dp > 1 else 0.45)


@pytest.mark.parametrize("overlap", [1.0, 3.0])
def test_fit_recovers_a_known_model(overlap: float) -> None:
    truth, times = Steps((0.02, 0.03, 0.08), overlap), StepTimes()
    seen = [strategy(mbs, m) for mbs in (1, 2, 4, 8) for m in (1, 2, 4)]
    for one in seen:
        times.add(one, truth.time_s(one))
    fit = times.fit()
    for one in [*seen, strategy(3, 3), strategy(6, 1), strategy(12, 2)]:
        assert fit(one) == pytest.approx(truth.time_s(one), rel=0.04)


def test_configurations_count_once_however_often_they_were_seen() -> None:
    once, often = StepTimes(), StepTimes()
    for mbs, m, seconds, count in ((1, 1, 0.2, 1), (2, 1, 0.25, 50), (2, 2, 0.4, 3)):
        once.add(strategy(mbs, m), seconds)
        for _ in range(count):
            often.add(strategy(mbs, m), seconds)
    assert often.fit()(strategy(4, 1)) == pytest.approx(once.fit()(strategy(4, 1)), rel=1e-4)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 8), st.floats(1e-4, 1e3)),
        min_size=1,
        max_size=6,
    )
)
def test_fit_is_positive_finite_and_repeatable(seen: list[tuple[int, int, float]]) -> None:
    fits = []
    for _ in range(2):
        times = StepTimes()
        for mbs, m, seconds in seen:
            times.add(strategy(mbs, m), seconds)
        fits.append(times.fit())
    for mbs in (1, 4, 32):
        assert 0 < fits[0](strategy(mbs, 2)) < 1e9
        assert fits[0](strategy(mbs, 2)) == fits[1](strategy(mbs, 2))
