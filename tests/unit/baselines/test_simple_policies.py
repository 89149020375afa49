"""fixed-best, rampup and the greedy oracle against decisions worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from problems import PP4, TABLE, TableTimes, estimate, observe, problem, tiny_model

from baselines.fixed_best import FixedBest
from baselines.oracle import GreedyOracle
from baselines.rampup import Rampup
from cona.errors import ConfigError
from cona.policy import Fork
from cona.specs import LadderSpec, OracleSpec
from cona.strategy import Strategy, StrategySpace


def test_fixed_best_takes_the_fastest_and_stays() -> None:
    # It plans with the truth, where pipelines win at gbs 32 too, not with the belief.
    truth = {**TABLE, (PP4, 32): 0.4}
    policy = FixedBest(gbs=32)
    policy.know(TableTimes(truth))
    strategy = policy.start(problem(TableTimes(TABLE)))
    assert (str(strategy.layout), strategy.gbs) == (PP4, 32)
    seen = observe(strategy, 100, estimate(1e9), iteration_s=99.0)
    assert policy.decide(seen).strategy is None


def test_fixed_best_outside_the_space() -> None:
    # One layer and one head leave dp4 only.
    narrow = tiny_model(num_layers=1, num_heads=1, num_kv_heads=1, ffn_size=1)
    space = StrategySpace(model=narrow, num_gpus=4, ladder=problem().space.ladder)
    with pytest.raises(ConfigError, match="no layout of 4 GPUs divides gbs 10; nearest: 8"):
        FixedBest(gbs=10).start(replace(problem(), space=space))
    with pytest.raises(ConfigError, match="between 1 and 1048576"):
        FixedBest(gbs=10**20)


def test_rampup_by_hand() -> None:
    # From 8 to 32 in steps of 8 over 0.3 * 1000 samples: one step every 100 samples.
    policy = Rampup(ramp=0.3)
    table = {(PP4, g): 0.1 * g for g in (8, 16, 24, 32)}
    first = policy.start(problem(TableTimes(table)))
    assert first.gbs == 8
    assert [policy.gbs_at(s) for s in (0, 99, 100, 199, 200, 300, 9999)] == (
        [8, 8, 16, 16, 24, 32, 32]
    )
    assert policy.decide(observe(first, 12, estimate(1.0), iteration_s=0.8)).strategy is None
    decision = policy.decide(observe(first, 13, estimate(1.0), iteration_s=0.8))
    assert decision.strategy is not None
    assert decision.strategy.gbs == 16


def test_rampup_in_one_layout() -> None:
    # At gbs 32 data parallelism is faster, and only the policy that may change layouts takes it.
    table = {**TABLE, (PP4, 24): 0.4}
    for layout, last in (("best", "dp4-tp1-pp1"), ("fixed", PP4)):
        policy = Rampup(ramp=0.3, layout=layout)  # type: ignore[arg-type]
        first = policy.start(problem(TableTimes(table)))
        assert str(first.layout) == PP4
        decision = policy.decide(observe(first, 50, estimate(1.0), iteration_s=0.2))
        assert decision.strategy is not None
        assert (str(decision.strategy.layout), decision.strategy.gbs) == (last, 32)


def test_rampup_of_a_single_rung() -> None:
    ladder = LadderSpec(gbs_min=8, gbs_max=8, mbs_max=8)
    policy = Rampup()
    assert policy.start(problem(ladder=ladder)).gbs == 8
    assert policy.gbs_at(10**6) == 8


class Landscape:
    """A look-ahead whose log perplexity falls by a known amount per iteration of each gbs."""

    def __init__(self, fall: dict[int, float]) -> None:
        self.fall = fall
        self.asked: list[tuple[int, int]] = []

    def __call__(self, fork: Fork) -> float:
        stages = [(strategy.gbs, iterations) for strategy, iterations in fork if iterations]
        self.asked += stages
        return 5.0 - sum(self.fall[gbs] * iterations for gbs, iterations in stages)


def start_oracle(fall: dict[int, float], **oracle: object) -> tuple[GreedyOracle, Landscape]:
    policy, landscape = GreedyOracle(), Landscape(fall)
    policy.attach(landscape)
    policy.know(TableTimes(TABLE))
    spec = OracleSpec.model_validate({"decisions": 1000, **oracle})
    policy.start(problem(oracle=spec))
    return policy, landscape


def test_oracle_commits_to_the_fastest_fall_per_second() -> None:
    # Budget 1000 s / 1000 decisions: D = 1 s: k = round(1/0.2), round(1/0.3), round(1/0.45).
    fall = {8: 0.02, 16: 0.033, 32: 0.045}
    policy, landscape = start_oracle(fall)
    assert landscape.asked == [(8, 5), (16, 3), (32, 2)]
    # Per second: 0.02/0.2 = 0.1, 0.033/0.3 = 0.11, 0.045/0.45 = 0.1: gbs 16, for 3 iterations.
    current = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=16)
    for i in (1, 2):
        assert policy.decide(observe(current, i, estimate(1), iteration_s=0.3)).strategy is None
    assert len(landscape.asked) == 3
    landscape.fall[32] = 0.09
    decision = policy.decide(observe(current, 3, estimate(1), iteration_s=0.3))
    assert decision.strategy is not None
    assert decision.strategy.gbs == 32
    assert decision.details["score_gbs32"] == pytest.approx(0.2)
    assert decision.details["score_gbs16"] == pytest.approx(0.11)


def test_oracle_forks_of_neighbours() -> None:
    policy, landscape = start_oracle({8: 0.1, 16: 0.0, 32: 0.0}, forks="neighbours")
    landscape.asked.clear()
    current = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
    for i in range(5):
        policy.decide(observe(current, i + 1, estimate(1), iteration_s=0.2))
    assert [gbs for gbs, _ in landscape.asked] == [8, 16]


def test_oracle_per_iteration() -> None:
    _, landscape = start_oracle({8: 0.1, 16: 0.0, 32: 0.0}, decisions=None)
    # The wording of the paper: every fork runs one iteration.
    assert landscape.asked == [(8, 1), (16, 1), (32, 1)]
