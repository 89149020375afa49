"""What the self-test runs, and when it says pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.engine.base import StepStats
from cona.errors import ConfigError
from cona.selftest import FAMILIES, SelfTest
from cona.selftest.cases import (
    MBS,
    NUM_LIVE_STEPS,
    Case,
    batches,
    cases_of,
    layouts,
    small_model,
    world_sizes,
)
from cona.selftest.verdict import Verdict, judge
from cona.strategy import Layout, divisors

families = st.sampled_from(FAMILIES)
GPT = Case(family="gpt", precision="fp32", layouts=(Layout(dp=2, tp=1, pp=1),))
# n = 2 micro-batches of mean square 5 and |G|^2 = 4: tr_sigma = (5 - 4)*4/1 = 4, mu_sq = 8 - 5 = 3.
STATS = StepStats(
    loss_nats=20.0,
    num_tokens=10,
    grad_norm=2.0,
    sum_sq_microbatch=5.0,
    num_microbatches=2,
    skipped=False,
)


@given(families, st.integers(1, 16))
def test_every_way_to_factor_the_ranks_is_a_layout_of_the_model(family, nproc):
    spec = small_model(family, nproc)
    for num_ranks in world_sizes(nproc):
        ways = sum(len(divisors(num_ranks // tp)) for tp in divisors(num_ranks))
        assert len(layouts(spec, num_ranks)) == ways


def test_world_sizes():
    assert world_sizes(1) == [1]
    assert world_sizes(4) == [2, 4]
    assert world_sizes(6) == [2, 3, 6]


@given(families, st.integers(1, 16))
def test_batches_divide_over_every_layout_and_change_in_size(family, nproc):
    spec = small_model(family, nproc)
    sizes = [len(batch) for batch in batches(spec)]
    assert len(sizes) == NUM_LIVE_STEPS
    assert len(set(sizes)) == 2
    for layout in layouts(spec, nproc):
        assert all(size % (layout.dp * MBS) == 0 for size in sizes)
    assert all(size // MBS >= 2 for size in sizes)  # else there is no noise scale


@given(families, st.integers(2, 12))
def test_the_live_run_visits_every_layout_and_comes_back(family, nproc):
    live = [case for case in cases_of(family, nproc, nproc, ("fp32",)) if case.is_live]
    assert len(live) == 1
    way = [live[0].layout_at(step) for step in range(live[0].num_steps)]
    assert list(dict.fromkeys(way)) == list(live[0].layouts)
    assert way[-1] == way[0]


def test_one_rank_has_nothing_to_switch():
    assert [str(case) for case in cases_of("gpt", 1, 1, ("fp32",))] == ["dp1-tp1-pp1"]


def test_cases_are_counted_before_they_run():
    # Per family: 3 layouts of 2 ranks, 6 of 4, a live run for each; twice for two precisions.
    assert SelfTest(nproc=4).num_cases == 3 * (3 + 1 + 6 + 1)
    assert SelfTest(nproc=4, families=("gpt",), precision="bf16").num_cases == 2 * (3 + 1 + 6 + 1)
    assert SelfTest(nproc=1).num_cases == 3


@pytest.mark.parametrize(("nproc", "num_gpus"), [(0, 0), (-1, 0), (3, 2)])
def test_impossible_numbers_of_ranks(nproc, num_gpus):
    with pytest.raises(ConfigError, match=f"nproc {nproc}"):
        SelfTest(nproc=nproc, num_gpus=num_gpus)


# --- verdicts -----------------------------------------------------------------------------------


def test_differences_by_hand():
    ours = replace(STATS, loss_nats=20.2, sum_sq_microbatch=5.5)
    verdict = judge(GPT, [STATS, ours], [STATS, STATS, STATS])
    # tr_sigma = (5.5 - 4)*4 = 6 instead of 4, mu_sq = 8 - 5.5 = 2.5 instead of 3.
    expected = {"loss": 0.01, "tr_sigma": 0.5, "mu_sq": 1 / 6, "norm": 0.0}
    assert verdict.differences == pytest.approx(expected)
    assert not verdict.passed


@given(st.floats(0, 1e-3), st.sampled_from(["loss_nats", "grad_norm", "sum_sq_microbatch"]))
def test_a_pass_is_within_tolerance(error, quantity):
    ours = replace(STATS, **{quantity: getattr(STATS, quantity) * (1 + error)})
    verdict = judge(GPT, [ours], [STATS])
    found = verdict.differences
    assert verdict.passed == (
        found["loss"] <= 1e-5
        and found["norm"] <= 1e-5
        and found["tr_sigma"] <= 1e-4
        and found["mu_sq"] <= 1e-4
    )
    assert verdict.passed or error > 1e-6


def test_equal_runs_pass_and_live_runs_are_judged_by_their_losses():
    assert judge(GPT, [STATS], [STATS]).passed
    live = replace(GPT, layouts=(Layout(dp=2, tp=1, pp=1), Layout(dp=1, tp=2, pp=1)))
    worse = replace(STATS, grad_norm=3.0)
    assert judge(live, [worse], [STATS]).differences == {"loss": 0.0}
    assert judge(live, [worse], [STATS]).passed


@pytest.mark.parametrize(
    "change",
    [
        {"loss_nats": math.nan},
        {"loss_nats": math.inf},
        {"grad_norm": math.nan},
        {"sum_sq_microbatch": None},
        {"num_microbatches": 3},
        {"num_tokens": 9},
        {"skipped": True},
    ],
)
def test_what_is_missing_or_not_a_number_never_passes(change):
    verdict = judge(GPT, [STATS, replace(STATS, **change)], [STATS, STATS])
    assert not verdict.passed
    assert all(value is None or math.isfinite(value) for value in differences(verdict))


def differences(verdict: Verdict) -> list[float | None]:
    return list(verdict.record()["differences"].values())


def test_a_case_that_did_not_end_fails():
    assert not Verdict(case=GPT, note="rank 1 died").passed
    assert not Verdict(case=GPT).passed
