"""What holds for all planners of unequal stages: real clusters, profiles, more memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from chain_costs import ChainCosts, chain_query
from chain_plans import chains
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import estimate, observe, problem
from profile_cases import SIZES, lines, profile_query, write_profile

from baselines.aceso import Aceso
from baselines.alpa import Alpa
from baselines.galvatron import Galvatron, GalvatronUniform
from baselines.mist import Mist
from baselines.piper import Piper
from cona.config import load
from cona.errors import ConfigError
from cona.planners import OfflinePlanner, query_of
from cona.planners.plans import projected
from cona.planners.stage_prices import StagePricer
from cona.registry import policies, policy
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Techniques

KINDS = [Aceso, Galvatron, GalvatronUniform, Alpa, Piper, Mist]
EXACT = [Galvatron, GalvatronUniform, Alpa, Piper, Mist]
"""Aceso's search is a heuristic: with more memory it may take another way."""


@pytest.mark.parametrize("kind", KINDS)
def test_registered_with_source_and_year(kind: type[OfflinePlanner]) -> None:
    assert policies()[kind.name] is kind
    assert kind.kind == "offline"
    assert "20" in kind.source
    assert policy(f"{kind.name}-gbs64") == kind(gbs=64)


@pytest.mark.parametrize(
    "text",
    [
        "alpa-max_groups0",
        "piper-max_groups0",
        "mist-max_groups0",
        "galvatron-memory_unit_mb0",
        "galvatron-u-gbs0",
        "aceso-max_hops0",
        "aceso-max_hops101",
        "aceso-max_evaluations0",
    ],
)
def test_parameters_out_of_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be (at|between)"):
        policy(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gbs", [8, 64])
def test_a_real_cluster(kind: type[OfflinePlanner], gbs: int) -> None:
    model, cluster = load(ModelSpec, "llama-3.2-1b"), load(ClusterSpec, "a100x4-2node")
    techniques = Techniques(zero_stage=1, recompute="full")
    query = query_of(model, cluster, gbs, preset="improved", mbs_max=32, techniques=techniques)
    found = kind().plan(query)
    best = found.best
    assert best in found.evaluated
    assert found.num_evaluated == len(found.evaluated)
    assert sum(stage.num_layers for stage in best.stages) == model.num_layers
    assert best.num_gpus == 4
    assert query.fits(best)
    assert best.mbs <= 32
    for plan in found.evaluated:
        assert math.isfinite(plan.believed_s)
        edges = [stage.first_layer for stage in plan.stages]
        ends = [stage.first_layer + stage.num_layers for stage in plan.stages]
        assert edges == [0, *ends[:-1]]
    strategy, note = projected(best, query.space)
    assert strategy in query.strategies
    assert bool(note) == (best.strategy(techniques) != strategy or best.unequal_layers is not None)


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=8, deadline=None)
@given(costs=chains, memory=st.floats(60, 200))
def test_more_memory_is_never_slower(
    kind: type[OfflinePlanner], costs: ChainCosts, memory: float
) -> None:
    scaled = replace(costs, **{name: 1e6 * getattr(costs, name) for name in ("state", "kept")})
    tight = chain_query(scaled, num_gpus=4, memory=memory * 1e6)
    loose = chain_query(scaled, num_gpus=4, memory=memory * 1.5e6)
    try:
        believed_s = kind().plan(tight).best.believed_s
    except ConfigError:
        return
    assert kind().plan(loose).best.believed_s <= believed_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_is_enough(kind: type[OfflinePlanner], tmp_path: Path) -> None:
    query = profile_query(write_profile(tmp_path / "p"), num_gpus=4, gbs=4)
    found = kind().plan(query)
    for plan in found.evaluated:
        assert plan.mbs in (1, 2)
        assert {stage.tp for stage in plan.stages} <= {1, 2}


def test_the_embedding_counts_on_the_first_stage(tmp_path: Path) -> None:
    # 4 * 30 + 3 + 15 ms for a sample on one GPU
    query = profile_query(write_profile(tmp_path / "p"), num_gpus=1, gbs=1)
    for kind in (Alpa, Aceso):
        assert kind().plan(query).best.believed_s == pytest.approx(0.138)


def test_one_stage_holds_what_both_ends_were_measured_to_hold(tmp_path: Path) -> None:
    # 4 * 1600 + 800 + 800 bytes: the vocabulary's table is in the rows of both ends, or of none.
    query = profile_query(write_profile(tmp_path / "p", lines([(1, 1)])), num_gpus=2, gbs=2)
    assert StagePricer(query).params_bytes[0, -1] == 8000
    # Mist, two replicas on a link of 8 kB/s: 138 ms, then 1 s of all-reduce and 12 ms of optimizer.
    plans = {str(plan): plan.believed_s for plan in Mist().plan(query).evaluated}
    assert plans["dp2-tp1-pp1-mbs1-gbs2"] == pytest.approx(0.138 + 1.012)
    # Piper, two stages: 30 + 30 + 15 ms, and 8 ms each for an activation and its gradient; twice.
    assert Piper().plan(query).best.believed_s == pytest.approx(2 * (0.075 + 0.016))


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_without_what_it_takes(kind: type[OfflinePlanner], tmp_path: Path) -> None:
    only = [size for size in SIZES if size == (2, 2)]
    folder = write_profile(tmp_path / "p", lines(only))
    with pytest.raises(ConfigError, match="measured"):
        kind().plan(profile_query(folder, num_gpus=1, gbs=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_stays(kind: type[OfflinePlanner]) -> None:
    planner = kind(gbs=16)
    asked = problem()
    strategy = planner.start(asked)
    assert strategy.gbs == 16
    assert asked.space.why_not(strategy) is None
    assert planner.decide(observe(strategy, 1, estimate(1.0), iteration_s=1.0)).strategy is None
