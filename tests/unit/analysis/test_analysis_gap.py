"""The gap to the oracle: by hand, and against a numeric integral."""

import math

import numpy as np
import pytest
from fake_runs import eval_line, write_run
from hypothesis import given
from hypothesis import strategies as st

from cona.analysis.gap import BEST, gap_between, oracle_gaps
from cona.analysis.load import Curve, load_runs


def curve(rows):
    """Return a curve from (samples, train_s, ppl)."""
    samples, train_s, ppl = (np.array(c) for c in zip(*rows, strict=True))
    return Curve(
        samples=samples, train_s=train_s, wall_s=train_s, compute_s=train_s, switch_s={}, ppl=ppl
    )


FLAT = curve([(0, 0.0, 100.0), (8, 10.0, 100.0), (16, 20.0, 100.0)])


def test_a_constant_ratio_is_both_maximum_and_mean():
    gap = gap_between(curve([(0, 0.0, 110.0), (8, 5.0, 110.0), (16, 25.0, 110.0)]), FLAT)
    assert (gap.start_s, gap.end_s) == (10.0, 20.0)
    assert gap.largest == pytest.approx(0.1)
    assert gap.mean == pytest.approx(0.1)


def test_a_gap_that_doubles_log_linearly():
    gap = gap_between(curve([(0, 0.0, 50.0), (8, 10.0, 100.0), (16, 20.0, 200.0)]), FLAT)
    assert gap.largest == pytest.approx(1.0)
    assert gap.mean == pytest.approx(1 / math.log(2) - 1)  # the mean of 2**x over [0, 1], minus 1


def test_what_happens_before_the_later_warm_up_does_not_count():
    late = curve([(0, 0.0, 400.0), (8, 16.0, 100.0), (16, 20.0, 100.0)])
    gap = gap_between(late, FLAT)
    assert (gap.start_s, gap.largest, gap.mean) == (16.0, pytest.approx(0.0), pytest.approx(0.0))


def test_a_run_below_the_oracle_has_a_negative_gap():
    gap = gap_between(curve([(0, 0.0, 90.0), (8, 10.0, 90.0), (16, 20.0, 90.0)]), FLAT)
    assert gap.largest == pytest.approx(-0.1)
    assert gap.mean == pytest.approx(-0.1)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0.0, 100.0)],
        [(0, 0.0, 100.0), (8, 30.0, 90.0), (16, 40.0, 80.0)],
        [(0, 0.0, 100.0), (8, 5.0, 90.0)],
    ],
)
def test_curves_without_common_time_have_no_gap(rows):
    assert gap_between(curve(rows), FLAT) is None


perplexities = st.lists(st.floats(2.0, 500.0), min_size=4, max_size=4)


@given(perplexities, perplexities)
def test_closed_form_equals_a_numeric_integral(ours, theirs):
    times = np.array([0.0, 3.0, 10.0, 12.0])
    others = np.array([0.0, 2.0, 7.0, 11.0])
    one = curve([(8 * i, t, p) for i, (t, p) in enumerate(zip(times, ours, strict=True))])
    two = curve([(8 * i, t, p) for i, (t, p) in enumerate(zip(others, theirs, strict=True))])
    gap = gap_between(one, two)
    assert (gap.start_s, gap.end_s) == (3.0, 11.0)
    middles = np.linspace(3.0, 11.0, 40_001)
    ratio = np.exp(one.log_ppl_at(middles) - two.log_ppl_at(middles)) - 1
    assert gap.mean == pytest.approx(np.trapezoid(ratio, middles) / 8.0, rel=1e-5, abs=1e-6)
    assert gap.largest == pytest.approx(ratio.max(), rel=1e-3, abs=1e-3)
    assert gap.mean <= gap.largest + 1e-12


def test_runs_meet_the_oracle_of_their_own_model_and_seed(tmp_path):
    lines = [eval_line(8 * i, 10.0 * i, 100.0) for i in range(3)]
    worse = [eval_line(8 * i, 10.0 * i, 120.0) for i in range(3)]
    write_run(tmp_path, lines, policy="greedy-oracle", kind="bound", seed=0)
    write_run(tmp_path, worse, policy="greedy-oracle", kind="bound", seed=1)
    for seed in (0, 1, 2):
        write_run(tmp_path, worse, policy="cona", seed=seed)
    write_run(tmp_path, worse, model="other", policy="cona")
    found = oracle_gaps(load_runs(tmp_path, "quick"))
    single = [g for g in found if g.reference == "greedy-oracle"]
    assert [(g.run.policy, g.run.seed) for g in single] == [("cona", 0), ("cona", 1)]
    assert [g.gap.largest for g in single] == [pytest.approx(0.2), pytest.approx(0.0)]


FALLING = curve([(0, 0.0, 100.0), (8, 10.0, 100.0), (16, 20.0, 50.0)])
RISING = curve([(0, 0.0, 100.0), (8, 10.0, 50.0), (16, 20.0, 100.0)])


def test_the_reference_is_the_lowest_at_every_moment():
    # From 100 to 50 and from 50 to 100 the log perplexities cross half way, at 50 * sqrt(2).
    gap = gap_between(FLAT, FALLING, RISING)
    assert (gap.start_s, gap.end_s) == (10.0, 20.0)
    assert gap.largest == pytest.approx(1.0)  # 100/50 - 1 at both ends
    # Between an end and the middle the ratio falls from 2 to sqrt(2): its mean over x in [0, 1/2]
    # of 2**(1 - x) is (2 - sqrt(2)) / (log(2)/2).
    assert gap.mean == pytest.approx((2 - math.sqrt(2)) / (math.log(2) / 2) - 1)


def test_a_slow_reference_does_not_delay_the_comparison():
    slow = curve([(0, 0.0, 400.0), (8, 18.0, 100.0), (16, 20.0, 100.0)])
    gap = gap_between(curve([(0, 0.0, 110.0), (8, 10.0, 110.0), (16, 20.0, 110.0)]), FLAT, slow)
    assert (gap.start_s, gap.largest) == (10.0, pytest.approx(0.1))


@given(perplexities, perplexities, perplexities)
def test_nothing_is_below_a_reference_that_it_belongs_to(one, two, three):
    times = np.array([0.0, 3.0, 10.0, 12.0])
    curves = [
        curve(
            [
                (8 * i, t + shift * (i > 0), p)
                for i, (t, p) in enumerate(zip(times, ppl, strict=True))
            ]
        )
        for shift, ppl in ((0.0, one), (0.5, two), (1.0, three))
    ]
    for own in curves:
        gap = gap_between(own, *curves)
        span_s = gap.end_s - gap.start_s
        times = np.linspace(gap.start_s, gap.end_s, 20_001)
        lowest = np.min([other.log_ppl_at(times) for other in curves], axis=0)
        ratio = np.exp(own.log_ppl_at(times) - lowest) - 1
        assert gap.mean >= -1e-12
        mean = np.trapezoid(ratio, times) / span_s
        assert gap.mean == pytest.approx(mean, rel=1e-4, abs=1e-6)
        assert gap.largest == pytest.approx(ratio.max(), rel=1e-3, abs=1e-3)


def test_the_best_known_is_the_better_of_oracles_and_fixed_strategies(tmp_path):
    def flat(ppl, end=3):
        return [eval_line(8 * i, 10.0 * i, ppl) for i in range(end)]

    write_run(tmp_path, flat(110.0), policy="greedy-oracle", kind="bound")
    write_run(tmp_path, flat(105.0), policy="greedy-oracle-lookahead2", kind="bound")
    write_run(tmp_path, flat(100.0), policy="fixed-best-gbs16", kind="offline")
    # Neither a planner's run, nor a bound that is no oracle, nor one that diverged counts.
    write_run(tmp_path, flat(50.0), policy="metis-gbs16", kind="offline")
    write_run(tmp_path, flat(50.0), policy="merrill", kind="bound")
    diverged = [*flat(50.0, 2), eval_line(16, 20.0, None)]
    write_run(tmp_path, diverged, policy="fixed-best-gbs8", kind="offline", status="diverged")
    write_run(tmp_path, flat(120.0), policy="cona")
    found = {
        g.reference: g.gap.largest
        for g in oracle_gaps(load_runs(tmp_path, "quick"))
        if g.run.policy == "cona"
    }
    assert found == {
        "greedy-oracle": pytest.approx(120 / 110 - 1),
        "greedy-oracle-lookahead2": pytest.approx(120 / 105 - 1),
        BEST: pytest.approx(0.2),
    }


def test_the_warm_up_is_left_out():
    # Wildly above the oracle until sample 8, exactly on it from 16 on.
    oracle = curve([(0, 0.0, 100.0), (8, 10.0, 100.0), (16, 20.0, 100.0), (24, 30.0, 100.0)])
    other = curve([(0, 0.0, 9e3), (8, 10.0, 900.0), (16, 20.0, 100.0), (24, 30.0, 100.0)])
    assert gap_between(other, oracle).largest == pytest.approx(8.0)
    without = gap_between(other, oracle, warmup_samples=9.0)
    assert (without.start_s, without.end_s) == (20.0, 30.0)
    assert without.largest == pytest.approx(0.0)
