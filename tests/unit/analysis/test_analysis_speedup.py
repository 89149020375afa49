"""Paired speed-ups by hand."""

import pytest
from fake_runs import eval_line, write_run

from cona.analysis.load import load_runs
from cona.analysis.speedup import HINDSIGHT, speedups
from cona.analysis.table_speedup import cell
from cona.analysis.ttp import ttp_rows

BUDGET_S = 300.0
TARGET = 56.2


def write_times(tmp_path, times, kind):
    """Write runs that reach the target at the given seconds, never if None, by policy and seed."""
    for policy, seconds in times.items():
        for seed, at in enumerate(seconds):
            end = (at, 56.0) if at else (BUDGET_S, 59.0)
            paid = 3.0 if policy == "cona" else 0.0
            lines = [eval_line(0, 0.0, 60.0), eval_line(128, *end, switch_s=paid)]
            write_run(tmp_path, lines, policy=policy, kind=kind, seed=seed, time_budget_s=BUDGET_S)


def compare(tmp_path, methods, baselines):
    write_times(tmp_path, methods, "online")
    write_times(tmp_path, baselines, "offline")
    found = speedups(ttp_rows(load_runs(tmp_path, "quick")))
    assert {s.target for s in found} <= {TARGET}
    return {(s.method, s.baseline): s for s in found}


def test_median_points_and_interval_are_paired_by_seed(tmp_path):
    found = compare(
        tmp_path, {"cona": (50.0, 60.0, 80.0)}, {"fixed-best-gbs8": (100.0, 90.0, 100.0)}
    )
    speedup = found["cona", "fixed-best-gbs8"]
    assert speedup.state == "ratio"
    assert speedup.points == [2.0, 1.5, 1.25]
    assert speedup.centre == 1.5
    assert speedup.interval == pytest.approx((0.86238, 2.79890), rel=1e-4)
    assert cell(speedup) == "1.50 (2.00, 1.50, 1.25) [0.86, 2.80]"


def test_the_best_fixed_in_hindsight_is_chosen_for_each_seed(tmp_path):
    found = compare(
        tmp_path,
        {"cona": (50.0, 50.0, 50.0)},
        {"fixed-best-gbs8": (100.0, 90.0, 80.0), "fixed-best-gbs16": (120.0, 70.0, None)},
    )
    best = found["cona", HINDSIGHT]
    assert best.points == [2.0, 1.4, 1.6]
    chosen = [p.baseline.run.policy for p in best.pairs]
    assert chosen == ["fixed-best-gbs8", "fixed-best-gbs16", "fixed-best-gbs8"]


def test_an_offline_policy_that_is_not_fixed_best_is_a_baseline_but_not_in_hindsight(tmp_path):
    found = compare(tmp_path, {"cona": (50.0,)}, {"fixed-best-gbs8": (100.0,), "planner": (60.0,)})
    assert found["cona", "planner"].centre == 1.2
    assert found["cona", HINDSIGHT].centre == 2.0
    assert not [method for method, _ in found if method != "cona"]


def test_an_unreached_baseline_gives_only_a_bound(tmp_path):
    found = compare(tmp_path, {"cona": (50.0,)}, {"fixed-best-gbs8": (None,)})
    for baseline in ("fixed-best-gbs8", HINDSIGHT):
        speedup = found["cona", baseline]
        assert (speedup.state, speedup.centre, speedup.interval) == ("at_least", 6.0, None)
        assert cell(speedup) == "≥ 6.00"
        assert set(speedup.pairs[0].recharged.values()) == {None}


def test_one_bound_makes_the_median_a_bound_without_interval(tmp_path):
    found = compare(
        tmp_path, {"cona": (50.0, 60.0, 80.0)}, {"fixed-best-gbs8": (100.0, None, 100.0)}
    )
    speedup = found["cona", "fixed-best-gbs8"]
    # 300/60 = 5 is a lower bound, so the median of (2, >= 5, 1.25) is at least 2
    assert (speedup.state, speedup.centre, speedup.interval) == ("at_least", 2.0, None)
    assert cell(speedup) == "≥ 2.00 (2.00, ≥ 5.00, 1.25)"


def test_an_unreached_method_has_no_number(tmp_path):
    found = compare(
        tmp_path,
        {"cona": (50.0, None), "cona-paper": (None, None)},
        {"fixed-best-gbs8": (100.0, None)},
    )
    speedup = found["cona", "fixed-best-gbs8"]
    assert (speedup.state, speedup.centre, speedup.interval) == ("not_reached", None, None)
    assert (speedup.num_reached, speedup.points) == (1, [2.0])
    assert cell(speedup) == "not reached (1/2)"
    assert cell(found["cona-paper", "fixed-best-gbs8"]) == "not reached (0/2)"


def test_a_seed_that_the_baseline_did_not_run_is_not_paired(tmp_path):
    found = compare(tmp_path, {"cona": (50.0, 60.0)}, {"fixed-best-gbs8": (100.0,)})
    assert found["cona", "fixed-best-gbs8"].points == [2.0]


def test_switches_are_recharged_on_both_sides(tmp_path):
    found = compare(tmp_path, {"cona": (50.0,)}, {"fixed-best-gbs8": (100.0,)})
    recharged = found["cona", "fixed-best-gbs8"].pairs[0].recharged
    # 47 s of compute; two switches of 1.5 s live or 38 s with a restart
    assert recharged == {
        "live": pytest.approx(100 / 50),
        "restart": pytest.approx(100 / (47 + 76)),
        "zero": pytest.approx(100 / 47),
    }


def test_nothing_is_compared_without_an_offline_policy(tmp_path):
    assert compare(tmp_path, {"cona": (50.0,), "rampup": (60.0,)}, {}) == {}
