"""Time to perplexity: hand-computed, and the ladder's invariants."""

import math
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from fake_runs import eval_line, write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cona.analysis.load import load_runs
from cona.analysis.ttp import (
    first_crossing,
    headline_target,
    interpolated_rows,
    label,
    rung,
    targets_between,
    targets_of,
    ttp_rows,
)

RISES_AGAIN = [(0, 0.0, 500.0), (128, 10.0, 100.0), (256, 20.0, 60.0), (384, 30.0, 80.0)]


def curve_of(tmp_path, rows, **kwargs):
    write_run(tmp_path, [eval_line(*row, **kwargs) for row in rows])
    return load_runs(tmp_path, "quick")[0].curve


def test_a_curve_that_rises_again_counts_its_first_crossing(tmp_path):
    curve = curve_of(tmp_path, [*RISES_AGAIN, (512, 40.0, 50.0)])
    at = first_crossing(curve, 70.8)
    assert at.train_s == 20.0
    # log 100 - log 70.8 = 0.345311 of log 100 - log 60 = 0.510826, in the 10 s after 10 s
    assert at.interpolated_s == pytest.approx(10 + 10 * 0.345311 / 0.510826, abs=1e-4)


def test_a_target_met_exactly_is_reached_and_one_just_below_is_not(tmp_path):
    curve = curve_of(tmp_path, RISES_AGAIN)
    assert first_crossing(curve, 60.0).train_s == 20.0
    assert first_crossing(curve, 60.0).interpolated_s == 20.0
    assert first_crossing(curve, 59.999) is None


def test_not_reached_is_a_state_even_if_the_run_diverged(tmp_path):
    rows = [(0, 0.0, 500.0), (128, 10.0, None), (256, 20.0, 60.0)]
    curve = curve_of(tmp_path, rows)
    assert first_crossing(curve, 50.1) is None
    assert first_crossing(curve, 63.1).train_s == 20.0


def test_a_curve_that_starts_below_the_target_crosses_at_its_start(tmp_path):
    at = first_crossing(curve_of(tmp_path, RISES_AGAIN), 600.0)
    assert (at.train_s, at.interpolated_s) == (0.0, 0.0)


def test_switches_are_recharged_by_every_preset(tmp_path):
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 20.0, 60.0, switch_s=3.0)]
    write_run(tmp_path, lines)
    at = first_crossing(load_runs(tmp_path, "quick")[0].curve, 63.1)
    assert at.recharged_s == {"live": 20.0, "restart": 17.0 + 76.0, "zero": 17.0}


def test_rungs_are_the_r20_numbers():
    assert targets_between(50.0, 105.0) == [100.0, 89.1, 79.4, 70.8, 63.1, 56.2, 50.1]
    assert [rung(k) for k in (0, 20, 35, 60)] == [1.0, 10.0, 56.2, 1000.0]
    assert [label(t) for t in (112000.0, 1000.0, 56.2, 1.12)] == ["112000", "1000", "56.2", "1.12"]


def test_the_ladder_includes_its_lower_and_excludes_its_upper_end():
    assert targets_between(56.2, 70.8) == [63.1, 56.2]
    assert targets_between(57.0, 60.0) == []


@given(
    low=st.floats(1.0, 1e5, allow_nan=False),
    factor=st.floats(1.0, 1e3, exclude_min=True, allow_nan=False),
)
def test_the_ladder_has_no_gaps_and_stays_inside(low, factor):
    below = low * factor
    targets = targets_between(low, below)
    assert targets == sorted(set(targets), reverse=True)
    assert all(low <= t < below for t in targets)
    # neighbours are 12.2 % apart, up to the rounding to three digits
    edges = [below, *targets, low]
    steps = [math.log(a / b) for a, b in pairwise(edges)]
    assert all(step <= math.log(10) / 20 + 0.01 for step in steps)
    assert all(step > math.log(10) / 20 - 0.01 for step in steps[1:-1])


def write_policies(tmp_path, ends, kinds=None):
    """Write runs that fall from 500 to the given perplexity in 10 s and stay there."""
    for (policy, seed), ppl in ends.items():
        rows = [(0, 0.0, 500.0 + 10.0 * seed), (128, 10.0, ppl), (256, 20.0, ppl)]
        kind = (kinds or {}).get(policy, "offline" if "fixed" in policy else "online")
        lines = [eval_line(*row) for row in rows]
        write_run(tmp_path, lines, policy=policy, kind=kind, seed=seed)
    return load_runs(tmp_path, "quick")


def test_all_runs_of_a_model_get_the_same_targets(tmp_path):
    runs = write_policies(tmp_path, {("cona", 0): 57.0, ("cona", 1): 90.0, ("rampup", 0): 70.0})
    targets = targets_of(runs)
    # 501 is a rung, but the first seed starts below it
    assert (targets[0], targets[-1]) == (447.0, 63.1)
    assert len(ttp_rows(runs)) == 3 * len(targets)


def headline_of(tmp_path, ends):
    return headline_target(ttp_rows(write_policies(tmp_path, ends)))


def test_headline_is_the_lowest_that_the_best_fixed_reached_at_every_seed(tmp_path):
    ends = {("fixed-best-gbs8", 0): 57.0, ("fixed-best-gbs16", 0): 90.0}
    ends |= {("fixed-best-gbs8", 1): 120.0, ("fixed-best-gbs16", 1): 80.0}
    # best fixed: 57 and 80, so 89.1 at both; the next rung, 79.4, only at the first
    assert headline_of(tmp_path, ends) == 89.1


def test_only_fixed_strategies_move_the_headline(tmp_path):
    ends = {("fixed-best-gbs8", 0): 70.0, ("cona", 0): 57.0, ("cona", 1): 90.0}
    assert headline_of(tmp_path, {**ends, ("rampup", 0): 300.0, ("fixed", 0): 57.0}) == 70.8


def test_without_a_fixed_strategy_any_run_gives_the_headline(tmp_path):
    ends = {("cona", 0): 57.0, ("rampup", 0): 300.0, ("cona", 1): 300.0, ("rampup", 1): 90.0}
    assert headline_of(tmp_path, ends) == 100.0


def test_no_headline_target_if_no_fixed_strategy_improved_at_a_seed(tmp_path):
    ends = {("cona", 0): 57.0, ("fixed-best-gbs8", 0): 57.0, ("fixed-best-gbs8", 1): 600.0}
    assert headline_of(tmp_path, ends) is None


final = st.floats(30.0, 600.0)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fixed=st.lists(final, min_size=2, max_size=3), ours=final, weak=final)
def test_the_headline_is_always_reached_by_the_best_fixed(tmp_path, fixed, ours, weak):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    ends = {(f"fixed-best-gbs{8 * 2**i}", 0): ppl for i, ppl in enumerate(fixed)}
    rows = ttp_rows(write_policies(folder, {**ends, ("cona", 0): ours, ("rampup", 0): weak}))
    reached = {r.target for r in rows if r.crossing and "fixed" in r.run.policy}
    assert headline_target(rows) == min(reached, default=None)


def test_interpolated_rows_move_the_ttp_and_keep_what_is_unreached(tmp_path):
    rows = ttp_rows(write_policies(tmp_path, {("cona", 0): 100.0, ("rampup", 0): 200.0}))
    moved = {(r.run.policy, r.target): r.train_s for r in interpolated_rows(rows)}
    # from 500 to 100 in 10 s: log(500/100) = 1.609438, log(500/224) = 0.802962
    assert moved["cona", 224.0] == pytest.approx(10 * 0.802962 / 1.609438, abs=1e-4)
    assert moved["cona", 100.0] == 10.0
    assert moved["rampup", 100.0] is None
    assert all(r.train_s in (10.0, None) for r in rows)  # the table's rows are left alone


def test_no_targets_without_any_perplexity(tmp_path):
    write_run(tmp_path, [eval_line(0, 0.0, None)], status="diverged")
    assert ttp_rows(load_runs(tmp_path, "quick")) == []
