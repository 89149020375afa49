"""The oracle that looks several intervals ahead, and the one that pays for its switches."""

from __future__ import annotations

import pytest
from problems import TABLE, TableTimes, estimate, observe, problem

from baselines.oracle import GreedyOracle
from cona.errors import ConfigError
from cona.policy import Fork
from cona.registry import policy
from cona.specs import ClockSpec, OracleSpec
from cona.strategy import Strategy

PP4_16 = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=16)

# Budget 1000 s / 1000 decisions: D = 1 s: 5 iterations at gbs 8 (1.0 s), 3 at 16 (0.9 s), 2 at 32
# (0.9 s). The fastest layouts are a pipeline at 8 and 16 and data parallelism at 32.
FALL = {8: 0.1, 16: 0.099, 32: 0.09}  # per interval: 0.1, 0.11 and 0.1 per second


class Landscape:
    """Log perplexity falls by FALL per interval, and by a bonus for a sequence of batch sizes."""

    def __init__(self, bonus: dict[tuple[int, ...], float]) -> None:
        self.bonus = bonus
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, fork: Fork) -> float:
        sizes = tuple(strategy.gbs for strategy, iterations in fork if iterations)
        self.asked.append(sizes)
        return 5.0 - sum(FALL[gbs] for gbs in sizes) - self.bonus.get(sizes, 0.0)


def started(
    policy: GreedyOracle, bonus: dict[tuple[int, ...], float], **oracle: object
) -> tuple[Strategy, Landscape]:
    landscape = Landscape(bonus)
    policy.attach(landscape)
    policy.know(TableTimes(TABLE))
    spec = OracleSpec.model_validate({"decisions": 1000, **oracle})
    return policy.start(problem(oracle=spec, clock=ClockSpec(switch_cost="live"))), landscape


def test_looks_beyond_what_is_best_now() -> None:
    bonus = {(8, 32): 0.1}
    assert started(GreedyOracle(), bonus)[0].gbs == 16
    # (0.1 + 0.09 + 0.1)/1.9 = 0.153 per second, against (0.099 + 0.099)/1.8 = 0.11 of 16, 16.
    first, landscape = started(GreedyOracle(lookahead=2), bonus)
    assert first.gbs == 8
    assert len(landscape.asked) == 1 + 3 * 3


def test_look_ahead_among_neighbours() -> None:
    policy = GreedyOracle(lookahead=2)
    _, landscape = started(policy, {(8, 16): 1.0}, forks="neighbours")
    # From the start any batch, then 8 or 16 after 8, all after 16, 16 or 32 after 32.
    assert len(landscape.asked) == 1 + 2 + 3 + 2
    landscape.asked.clear()
    current = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
    for i in range(1, 6):
        decision = policy.decide(observe(current, i, estimate(1.0), iteration_s=0.2))
    assert landscape.asked == [(), (8, 8), (8, 16), (16, 8), (16, 16), (16, 32)]
    assert decision.strategy is None
    assert decision.details["score_gbs8"] == pytest.approx(1.199 / 1.9)
    assert decision.details["score_gbs16"] == pytest.approx(0.11)


@pytest.mark.parametrize(("charged", "gbs"), [(False, 32), (True, 16)])
def test_charged_stays_where_a_switch_eats_the_gain(charged: bool, gbs: int) -> None:
    policy = GreedyOracle(charged=charged)
    started(policy, {})
    policy._probe = Landscape({(32,): 0.03})
    for i in (1, 2, 3):
        decision = policy.decide(observe(PP4_16, i, estimate(1.0), iteration_s=0.3))
    # 0.12/0.9 = 0.133 per second at 32; with at least half a second for the new layout, less than
    # 0.12/1.4 = 0.086, below 0.11 at 16. From 16 to 8 the layout stays: no charge.
    assert (decision.strategy or PP4_16).gbs == gbs
    assert decision.details["score_gbs8"] == pytest.approx(0.1)
    assert decision.details["score_gbs16"] == pytest.approx(0.11)
    score = decision.details["score_gbs32"]
    assert isinstance(score, float)
    assert score < 0.0858 if charged else score == pytest.approx(0.1333, abs=1e-4)


def test_parameters() -> None:
    built = policy("greedy-oracle-lookahead=2-charged=on")
    assert isinstance(built, GreedyOracle)
    assert (built.lookahead, built.charged) == (2, True)
    with pytest.raises(ConfigError, match="greedy-oracle-lookahead9: must be between 1 and 4"):
        policy("greedy-oracle-lookahead=9")
