"""Plans, what becomes of unequal stages, and how a planner is a policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from problems import estimate, observe, problem, tiny_cluster, tiny_model
from profile_cases import profile_query, write_profile

from cona.errors import ConfigError
from cona.planners import (
    Answer,
    OfflinePlanner,
    Plan,
    Query,
    StagePlan,
    choose,
    query_of,
    uniform_plan,
)
from cona.planners.plans import projected
from cona.specs import LadderSpec
from cona.strategy import Strategy, StrategySpace, Techniques


def stage(first: int, count: int, dp: int, tp: int, **changes: object) -> StagePlan:
    return StagePlan(first_layer=first, num_layers=count, dp=dp, tp=tp, **changes)


def plan(*stages: StagePlan, mbs: int = 1, gbs: int = 8, believed_s: float = 1.0) -> Plan:
    return Plan(stages=stages, mbs=mbs, gbs=gbs, believed_s=believed_s)


def space(**techniques: object) -> StrategySpace:
    return StrategySpace(
        model=tiny_model(),
        num_gpus=4,
        ladder=LadderSpec(gbs_min=8, gbs_max=32, mbs_max=8),
        techniques=Techniques(**techniques),
    )


# --- plans --------------------------------------------------------------------------------------


def test_a_uniform_plan_is_its_strategy() -> None:
    even = plan(stage(0, 2, 2, 1), stage(2, 2, 2, 1), mbs=2)
    assert str(even) == "dp2-tp1-pp2-mbs2-gbs8" == str(even.strategy())
    assert (even.num_gpus, even.num_microbatches, even.memory_bytes) == (4, 2, None)
    assert even.why_not_uniform is even.unequal_layers is None
    assert projected(even, space()) == (even.strategy(), "")


def test_unequal_layers_become_equal_stages() -> None:
    uneven = plan(stage(0, 3, 2, 1, memory_bytes=7.0), stage(3, 1, 2, 1, memory_bytes=9.0))
    assert str(uneven) == "dp2-tp1-pp2-mbs1-gbs8 (3+1 layers)"
    assert uneven.memory_bytes == 9
    strategy, note = projected(uneven, space(zero_stage=1))
    assert str(strategy) == "dp2-tp1-pp2-mbs1-gbs8"
    assert strategy.techniques.zero_stage == 1
    assert note == "planned 3+1 layers, runs equal stages"


def test_unequal_degrees_become_the_nearest_strategy() -> None:
    mixed = plan(stage(0, 1, 2, 1), stage(1, 3, 1, 2), mbs=1)
    assert mixed.strategy() is None
    assert str(mixed) == "[1L:dp2-tp1, 3L:dp1-tp2]-mbs1-gbs8"
    # Three of four layers have tp 2; two stages of tp 2 leave dp 1, and m = 4 is mbs 2.
    strategy, note = projected(mixed, space())
    assert str(strategy) == "dp1-tp2-pp2-mbs2-gbs8"
    assert "nearest uniform strategy: stages differ in their degrees: 1L:dp2-tp1, 3L" in note


def test_stages_that_do_not_divide_the_layers_become_the_nearest() -> None:
    three = plan(stage(0, 2, 1, 1), stage(2, 1, 1, 1), stage(3, 1, 1, 1))
    strategy, note = projected(three, space())
    assert strategy.pp in (2, 4)
    assert "dp*tp*pp = 3 is not the number of GPUs, 4" in note


def test_mixed_layers_are_not_uniform() -> None:
    mixed = plan(stage(0, 4, 4, 1, mixed="2 layers zero3"))
    assert mixed.why_not_uniform == "layers of a stage differ: 2 layers zero3"
    assert mixed.strategy() is None


@pytest.mark.parametrize(
    ("planned", "given", "runs"),
    [
        (("full", "full"), "none", "full"),
        (("none", "full"), "none", "none"),
        (("none", "none"), "full", "full"),
        (("selective", ("full", "selective")), "none", "selective"),
    ],
)
def test_a_strategy_recomputes_what_the_whole_plan_does(planned, given: str, runs: str) -> None:
    stages = (stage(2 * i, 2, 2, 1, recompute=mode) for i, mode in enumerate(planned))
    strategy = plan(*stages).strategy(Techniques(recompute=given))
    assert strategy is not None
    assert strategy.techniques.recompute == runs


def test_uniform_plan_splits_layers_evenly() -> None:
    strategy = Strategy(dp=1, tp=2, pp=2, mbs=1, gbs=4)
    made = uniform_plan(strategy, 4, believed_s=2.0, seconds=[1.0, 2.0], memory_bytes=[3.0, 4.0])
    assert made.strategy() == strategy
    assert [(s.first_layer, s.num_layers, s.seconds, s.memory_bytes) for s in made.stages] == [
        (0, 2, 1.0, 3.0),
        (2, 2, 2.0, 4.0),
    ]


# --- choosing -----------------------------------------------------------------------------------


def query(gbs: int = 8, **changes: object) -> Query:
    found = query_of(
        tiny_model(), tiny_cluster(), gbs, preset="improved", mbs_max=8, techniques=Techniques()
    )
    return Query(**{**{f: getattr(found, f) for f in found.__dataclass_fields__}, **changes})


def test_the_cheapest_that_fits_wins_and_the_first_of_equals() -> None:
    large = plan(stage(0, 4, 4, 1, memory_bytes=81e9), believed_s=0.1)
    first = plan(stage(0, 4, 2, 2, memory_bytes=80e9), believed_s=0.5)
    unknown = plan(stage(0, 4, 1, 4), believed_s=0.5)
    answer = choose("mine", query(), iter([large, first, unknown]))
    assert answer.best is first
    assert (answer.num_evaluated, answer.evaluated) == (3, (large, first, unknown))


def test_nothing_feasible_names_the_closest() -> None:
    plans = [plan(stage(0, 4, 4, 1, memory_bytes=size)) for size in (200e9, 100e9)]
    expected = "mine: nothing feasible at gbs 8 on 4 GPUs: closest was dp4-tp1-pp1-mbs1-gbs8"
    with pytest.raises(ConfigError, match=f"{expected}, which needs 100 of 80 GB"):
        choose("mine", query(), plans)
    with pytest.raises(ConfigError, match="no degrees divide the GPUs, the 4 layers and gbs"):
        choose("mine", query(), [])


def test_a_profile_that_measured_no_size_in_need(tmp_path: Path) -> None:
    asked = profile_query(write_profile(tmp_path), num_gpus=4, gbs=8)
    with pytest.raises(ConfigError, match="the profile measured tp 1, 2 at mbs 1, 2"):
        choose("mine", asked, [])
    assert {(s.tp, s.mbs) for s in asked.strategies} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_sizes_that_a_query_allows() -> None:
    asked = query()
    assert asked.allows(4, 8)
    assert not asked.allows(1, 9)  # mbs_max
    assert not asked.allows(8, 1)  # GPUs
    assert not query(model=tiny_model(num_heads=2, num_kv_heads=2)).allows_tp(4)
    assert len(asked.strategies) == len(space().at(8))


def test_layouts_that_planners_do_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match="context_parallel 2, virtual_stages 1: offline"):
        query_of(
            tiny_model(),
            tiny_cluster(),
            8,
            preset="improved",
            mbs_max=8,
            techniques=Techniques(context_parallel=2),
        )


# --- as a policy ---------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Recorded(OfflinePlanner):
    """Answers what it was told to, by global batch size."""

    name: ClassVar[str] = "recorded"
    answers: dict[int, Plan]
    asked: list[Query] = field(default_factory=list)

    def plan(self, query: Query) -> Answer:
        self.asked.append(query)
        if query.gbs not in self.answers:
            raise ConfigError(f"nothing at {query.gbs}")
        return Answer(best=self.answers[query.gbs], num_evaluated=1)


def test_a_planner_plans_at_its_batch_size_and_stays() -> None:
    even = plan(stage(0, 4, 4, 1), gbs=16)
    policy = Recorded(gbs=16, answers={16: even})
    strategy = policy.start(problem())
    assert str(strategy) == "dp4-tp1-pp1-mbs1-gbs16"
    asked = policy.asked[0]
    assert (asked.gbs, asked.num_gpus, asked.gpus_per_node, asked.mbs_max) == (16, 4, 2, 8)
    assert asked.techniques == problem().space.techniques == strategy.techniques
    decision = policy.decide(observe(strategy, 1, estimate(1e9), iteration_s=1.0))
    assert (decision.strategy, decision.quiet) == (None, True)


def test_the_first_decision_says_what_became_of_unequal_stages() -> None:
    policy = Recorded(gbs=8, answers={8: plan(stage(0, 3, 2, 1), stage(3, 1, 2, 1))})
    strategy = policy.start(problem())
    seen = observe(strategy, 1, estimate(1e9), iteration_s=1.0)
    first, second = policy.decide(seen), policy.decide(seen)
    assert (first.strategy, first.quiet, second.quiet) == (None, False, True)
    assert first.reason == "planned 3+1 layers, runs equal stages"


def test_without_a_batch_size_the_most_samples_per_second_win() -> None:
    # 8/1.0, 16/1.5 and nothing at 32
    answers = {g: plan(stage(0, 4, 4, 1), gbs=g, believed_s=s) for g, s in ((8, 1.0), (16, 1.5))}
    assert Recorded(answers=answers).start(problem()).gbs == 16
    with pytest.raises(ConfigError, match="nothing at 32"):
        Recorded(answers={}).start(problem())


def test_a_batch_size_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="recorded-gbs0: the batch size must be between 1 and"):
        Recorded(gbs=0, answers={})
