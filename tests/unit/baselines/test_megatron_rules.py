"""Megatron's rules by hand: 4 layers, up to 2 stages; see profile_cases for the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_cases import SIZES, lines, profile_query, write_profile

from baselines.megatron_rules import MegatronRules, stage_seconds
from cona import config
from cona.errors import ConfigError
from cona.planners import query_of
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques


def ask(folder: Path, *, num_gpus: int = 4, gbs: int = 4, **profile: object):
    return profile_query(write_profile(folder, **profile), num_gpus=num_gpus, gbs=gbs)


@pytest.mark.parametrize(
    ("gpu_memory_gb", "layout"),
    [
        (0.5, "dp4-tp1-pp1"),  # the whole model is 500 MB
        (0.3, "dp2-tp2-pp1"),  # tensor parallel first, inside the node of two
        (0.2, "dp1-tp2-pp2"),  # then stages across nodes
    ],
)
def test_the_smallest_model_parallel_size_that_fits(
    tmp_path: Path, gpu_memory_gb: float, layout: str
) -> None:
    best = MegatronRules().plan(ask(tmp_path, gpu_memory_gb=gpu_memory_gb)).best
    strategy = best.strategy()
    assert strategy is not None
    assert str(strategy.layout) == layout


def test_two_stages_by_hand(tmp_path: Path) -> None:
    # The last stage at tp 2: two layers and the head, (30*2 + 15)/2 = 37.5 ms; m = 4 and p = 2.
    answer = MegatronRules().plan(ask(tmp_path, gpu_memory_gb=0.2))
    assert [stage.seconds for stage in answer.best.stages] == pytest.approx([0.0315, 0.0375])
    assert answer.best.believed_s == pytest.approx((4 + 2 - 1) * 0.0375)
    assert answer.best.mbs == 1
    assert answer.evaluated[-1].believed_s == pytest.approx((2 + 2 - 1) * 0.075)


def test_larger_micro_batches_win_where_each_costs_extra(tmp_path: Path) -> None:
    # 5 ms more for each of six forward passes: (2)*(69+30) against (1)*(138+30).
    csv = lines(SIZES, extra_ms=5)
    answer = MegatronRules().plan(ask(tmp_path, csv=csv, gpu_memory_gb=0.3))
    assert (answer.best.mbs, answer.best.believed_s) == (2, pytest.approx(0.168))
    by_size = {plan.mbs: plan.believed_s for plan in answer.evaluated if plan.stages[0].tp == 2}
    assert by_size[1] == pytest.approx(0.198)


def test_recomputation_is_one_more_forward_pass_of_the_layers(tmp_path: Path) -> None:
    techniques = Techniques(recompute="full")
    strategy = Strategy(dp=1, tp=1, pp=2, mbs=1, gbs=4, techniques=techniques)
    assert stage_seconds(ask(tmp_path), strategy) == pytest.approx([0.083, 0.095])


def test_it_recomputes_only_what_is_too_large_otherwise() -> None:
    model = config.load(ModelSpec, "gpt3-1.3b")
    cluster = config.load(ClusterSpec, "a100x4-2node")
    small = config.override(cluster, {"gpu_memory_gb": 34})
    query = query_of(model, small, 64, preset="improved", mbs_max=32, techniques=Techniques())
    evaluated = MegatronRules().plan(query).evaluated
    modes = {plan.mbs: plan.stages[0].recompute for plan in evaluated}
    assert set(modes.values()) == {"none", "full"}
    for plan in evaluated:
        plain = Strategy.parse(str(plan))
        assert (plan.stages[0].recompute == "none") == (query.memory_bytes(plain) <= 34e9)


def test_nothing_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"closest was dp1-tp2-pp2-mbs1-gbs4, which needs 0.125"):
        MegatronRules().plan(ask(tmp_path, gpu_memory_gb=0.1))
