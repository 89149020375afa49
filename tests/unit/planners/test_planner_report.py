"""Every planner against exhaustive search on the reference clock, and what the report says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from problems import TableTimes, tiny_cluster, tiny_model

from cona import config, registry
from cona.cost import TimeModel, time_model
from cona.errors import ConfigError
from cona.planners import Answer, Plan, Query, StagePlan, query_of
from cona.planners.report import (
    Verdict,
    chosen_names,
    found_any,
    judge,
    planner,
    planner_names,
    truth_of,
)
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Techniques

EXACT = 1e-9
"""Relative rounding of a time."""


def asked(model: str, cluster: str, gbs: int, **techniques: object) -> tuple[Query, TimeModel]:
    of, on = config.load(ModelSpec, model), config.load(ClusterSpec, cluster)
    given = Techniques(**techniques)
    query = query_of(of, on, gbs, preset="improved", mbs_max=32, techniques=given)
    return query, time_model("improved", of, on)


def check(verdict: Verdict, query: Query, reference: TimeModel) -> None:
    """A pick uses up the GPUs, is in S(gbs) or marked, and is never better than the best."""
    assert verdict.answer is not None, verdict.why_none
    assert verdict.truth is not None
    picked, truth = verdict.answer.best, verdict.truth
    assert picked.num_gpus == query.num_gpus
    assert picked.believed_s > 0
    assert sum(stage.num_layers for stage in picked.stages) == query.model.num_layers
    if truth.strategy is None:
        assert truth.remark.startswith("not expressible: ")
        return
    assert query.space.why_not(truth.strategy) is None
    assert truth.strategy.gbs == query.gbs
    if truth.seconds is None:
        assert truth.remark.startswith("cannot run: ")
    elif truth.strategy.techniques == query.techniques:
        times_s = [reference.time_s(s) for s in query.strategies if reference.why_not(s) is None]
        assert truth.seconds >= min(times_s) * (1 - EXACT)
        assert truth.over_best == pytest.approx(truth.seconds / min(times_s) - 1)


@pytest.mark.parametrize("gbs", [8, 64])
@pytest.mark.parametrize("name", planner_names())
def test_no_planner_beats_exhaustive_search(name: str, gbs: int) -> None:
    query, reference = asked("llama-3.2-1b", "a100x4-2node", gbs)
    check(judge(planner(name, gbs, reference), name, query, reference), query, reference)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt3-1.3b", "bert-large", "llama-3.2-1b"])
@pytest.mark.parametrize("cluster", ["a100x4-2node", "dgx-h100@2"])
@pytest.mark.parametrize("gbs", [16, 256])
@pytest.mark.parametrize("name", planner_names())
def test_nor_on_other_models_and_clusters(name: str, model: str, cluster: str, gbs: int) -> None:
    query, reference = asked(model, cluster, gbs, zero_stage=1, recompute="full")
    check(judge(planner(name, gbs, reference), name, query, reference), query, reference)


def test_fixed_best_is_the_bound() -> None:
    query, reference = asked("gpt3-1.3b", "a100x4-2node", 32)
    verdict = judge(planner("fixed-best", 32, reference), "fixed-best", query, reference)
    assert verdict.answer is not None
    assert verdict.truth is not None
    assert verdict.truth.over_best == pytest.approx(0)
    assert verdict.answer.best.believed_s == verdict.truth.seconds
    with pytest.raises(ConfigError, match="it plans with the reference clock, and there is none"):
        planner("fixed-best", 32, None).plan(query)


def test_calculon_is_the_best_by_its_own_model() -> None:
    query, reference = asked("gpt3-1.3b", "a100x4-2node", 64)
    own = time_model("calculon", query.model, query.cluster)
    answer = planner("calculon", 64, reference).plan(query)
    times_s = {str(s): own.time_s(s) for s in query.strategies if own.why_not(s) is None}
    assert {str(p): p.believed_s for p in answer.evaluated} == pytest.approx(times_s)
    assert str(answer.best) == min(times_s, key=lambda s: times_s[s])
    with pytest.raises(ConfigError, match="leave --profile out"):
        planner("calculon", 64, reference).plan(replace(query, cluster=None))


def test_planners_are_policies_with_their_variants() -> None:
    names = planner_names()
    assert {"fixed-best", "calculon", "megatron-rules", "amp", "amp-memory=on", "metis"} <= set(
        names
    )
    for name in names:
        policy = registry.policy(f"{name}-gbs64")
        assert policy.kind == "offline"
        assert policy.name in name
    assert chosen_names("all") == names
    assert chosen_names("metis-memory_per_gpu=on") == ["metis-memory_per_gpu=on"]
    with pytest.raises(ConfigError, match="unknown planner 'meti': did you mean 'metis'"):
        chosen_names("meti")
    with pytest.raises(ConfigError, match="unknown planner 'cona'"):
        chosen_names("cona")


# --- truth ---------------------------------------------------------------------------------------

TRUE_S = {("dp4-tp1-pp1", 8): 0.30, ("dp2-tp1-pp2", 8): 0.45}


def tiny_query() -> Query:
    return query_of(
        tiny_model(), tiny_cluster(), 8, preset="improved", mbs_max=8, techniques=Techniques()
    )


def two_stages(counts: tuple[int, int], tps: tuple[int, int] = (1, 1)) -> Plan:
    stages = tuple(
        StagePlan(first_layer=first, num_layers=count, dp=2 // tp, tp=tp)
        for first, count, tp in zip((0, counts[0]), counts, tps, strict=True)
    )
    return Plan(stages=stages, mbs=1, gbs=8, believed_s=0.1)


def test_truth_by_hand() -> None:
    truth = truth_of(two_stages((3, 1)), tiny_query(), TableTimes(TRUE_S))
    assert str(truth.strategy) == "dp2-tp1-pp2-mbs1-gbs8"
    assert (truth.seconds, truth.remark) == (0.45, "judged with equal stages")
    assert truth.over_best == pytest.approx(0.5)


def test_what_cannot_be_judged_says_why() -> None:
    mixed = truth_of(two_stages((3, 1), (1, 2)), tiny_query(), TableTimes(TRUE_S))
    assert (mixed.strategy, mixed.seconds) == (None, None)
    assert mixed.remark == "not expressible: stages differ in their degrees: 3L:dp2-tp1, 1L:dp1-tp2"
    cannot = truth_of(two_stages((2, 2)), tiny_query(), TableTimes({}))
    assert (cannot.seconds, cannot.remark) == (None, "cannot run: not in the table")


class Fails:
    def plan(self, query: Query) -> Answer:
        raise ConfigError(f"nothing at {query.gbs}")


def test_a_planner_that_finds_nothing_is_a_line() -> None:
    verdict = judge(Fails(), "fails", tiny_query(), None)
    assert (verdict.answer, verdict.truth, verdict.why_none) == (None, None, "nothing at 8")
    assert verdict.search_s >= 0
    with pytest.raises(ConfigError, match="nothing at 8"):
        found_any([verdict])
