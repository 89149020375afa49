"""Attribution: batch sizes times layouts, by hand, and what has no price or was not reached."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_runs import CONA, FIXED, Plan, Simulation, clock, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from problems import TableTimes, tiny_cluster, tiny_model

import cona.analysis.repricing as repricing
from cona.analysis.attribution import Attribution, Retimed, attributions
from cona.analysis.figure_attribution import draw
from cona.analysis.load import load_runs
from cona.analysis.style import figure_style
from cona.analysis.table_attribution import COLUMNS, bias_sentence, markdown, records
from cona.analysis.tables import write_tables
from cona.analysis.ttp import Crossing, Ttp
from cona.analysis.waterfall import levels, median_planner

A, B = "dp4-tp1-pp1", "dp1-tp1-pp4"
TIMES = {(A, 8): 1.5, (A, 16): 2.0, (B, 8): 1.0, (B, 16): 3.0}
"""Seconds of an iteration: layout A is the best at gbs 16, B at gbs 8."""
TARGET = 63.1  # the rung that a perplexity of 63 reaches and 70 does not


def lines(*stages, ppl, switch_s=0.0):
    """Return metrics of stages (layout, gbs, iterations), evaluated after each stage.

    Args:
        stages: what ran; a change of layout is charged ``switch_s``.
        ppl: perplexities, one before the first stage and one after each.
    """
    found, iteration, samples, compute_s, paid_s = [], 0, 0, 0.0, 0.0

    def record(kind, **fields):
        found.append({"kind": kind, "iteration": iteration, "samples": samples, **fields})

    def evaluate(strategy, value):
        record(
            "eval",
            strategy=strategy,
            train_s=compute_s + paid_s,
            compute_s=compute_s,
            wall_s=compute_s + paid_s,
            switch_s={"live": paid_s, "restart": paid_s, "zero": 0.0},
            ppl=value,
            bits_per_byte=None,
        )

    before = None
    for (layout, gbs, count), value in zip(stages, ppl[1:], strict=True):
        strategy = f"{layout}-mbs1-gbs{gbs}"
        if before is None:
            evaluate(strategy, ppl[0])
        elif before != strategy:
            paid_s += 0.0 if before.startswith(layout) else switch_s
            fields = {"from": before, "to": strategy, "train_s": compute_s + paid_s}
            record("switch", cost_s={"live": switch_s}, **fields)
        for _ in range(count):
            iteration, samples, compute_s = (
                iteration + 1,
                samples + gbs,
                compute_s + TIMES[layout, gbs],
            )
            record("step", strategy=strategy, gbs=gbs, iteration_s=TIMES[layout, gbs], gns=None)
        evaluate(strategy, value)
        before = strategy
    return found


def write(results: Path, policy: str, content: list, *, kind: str = "online", **changes) -> None:
    """Write a run of the tiny model whose run.json says what it was priced by."""
    path = write_run(
        results, content, policy=policy, kind=kind, clock=clock(time_source="table"), **changes
    )
    info = {
        "tier": {"ladder": {"gbs_min": 8, "gbs_max": 16, "mbs_max": 8}, "techniques": {}},
        "priced_model": tiny_model().model_dump(mode="json"),
        "cluster": tiny_cluster().model_dump(mode="json"),
    }
    (path / "run.json").write_text(json.dumps(info))


PPL = (500.0, 100.0, 63.0)
CONA_RUN = lines((B, 8, 4), (A, 16, 3), ppl=PPL, switch_s=0.5)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return results of a static strategy, a planner that errs, and cona; all reach the target."""
    monkeypatch.setattr(repricing, "time_model", lambda *_: TableTimes(TIMES))
    write(tmp_path, "fixed-best-gbs16", lines((A, 16, 3), (A, 16, 4), ppl=PPL), kind="offline")
    write(tmp_path, "metis-gbs8", lines((A, 8, 6), (A, 8, 6), ppl=PPL), kind="offline")
    write(tmp_path, "cona", CONA_RUN)
    return tmp_path


def at_target(results, policy):
    (one,) = [
        o
        for o in attributions(load_runs(results, "quick"))
        if (o.row.run.policy, o.row.target) == (policy, TARGET)
    ]
    return one


def test_the_factors_by_hand(results):
    one = at_target(results, "cona")
    assert one.row.train_s == pytest.approx(4 * 1.0 + 0.5 + 3 * 2.0)
    assert one.static.train_s == pytest.approx(7 * 2.0)
    assert one.at_static.seconds == pytest.approx(4 * 1.5 + 3 * 2.0)
    assert one.state == "product"
    assert one.schedule == pytest.approx(14 / 12)
    assert one.layout == pytest.approx(12 / 10.5)
    assert one.speedup == pytest.approx(14 / 10.5)
    assert one.at_own_gbs is None


def test_a_planner_loses_what_its_layout_costs(results):
    one = at_target(results, "metis-gbs8")
    assert one.row.train_s == pytest.approx(12 * 1.5)
    assert one.at_own_gbs.seconds == pytest.approx(12 * 1.0)
    assert one.planning_loss == pytest.approx(1.5)
    assert (one.schedule, one.layout) == (pytest.approx(14 / 18), pytest.approx(1.0))


def test_the_static_strategy_is_its_own_measure(results):
    one = at_target(results, "fixed-best-gbs16")
    assert one.at_static.seconds == one.at_own_gbs.seconds == one.row.train_s
    assert one.schedule == one.layout == one.speedup == one.planning_loss == 1.0


def test_an_unreached_static_strategy_gives_bounds(results):
    short = lines((A, 16, 3), ppl=(500.0, 70.0))
    write(results, "fixed-best-gbs16", short, kind="offline")
    one = at_target(results, "cona")
    assert (one.state, one.static_s) == ("at_least", 300.0)
    assert one.schedule == pytest.approx(300 / 12)
    assert one.speedup == pytest.approx(300 / 10.5)


def test_an_unreached_run_has_no_factors(results):
    write(results, "cona", lines((B, 8, 4), ppl=(500.0, 70.0)))
    one = at_target(results, "cona")
    assert one.state == "not_reached"
    assert (one.at_static.seconds, one.at_static.why_none) == (None, None)
    assert one.speedup is None and one.schedule is None and one.layout is None


def test_a_layout_that_does_not_divide_a_batch_is_said(results):
    write(results, "cona", [{**r, "gbs": 6} if r["kind"] == "step" else r for r in CONA_RUN])
    one = at_target(results, "cona")
    assert one.state == "unpriced"
    assert one.at_static.why_none == f"{A} does not divide gbs 6"
    assert one.schedule is None and one.speedup == pytest.approx(14 / 10.5)
    assert f"Without a price: {A} does not divide gbs 6." in markdown(
        "quick", load_runs(results, "quick")
    )


def test_times_of_other_code_are_not_mixed(results):
    write(
        results, "cona", [{**r, "iteration_s": 1.1} if r["kind"] == "step" else r for r in CONA_RUN]
    )
    why = at_target(results, "cona").at_static.why_none
    assert "was charged 1.1 s but this version" in why and "gives 1 s; run it again" in why


def test_runs_without_facts_have_times_but_no_factors(tmp_path):
    write_tier(tmp_path, models=("bert-large-proxy",), plans=(CONA, *FIXED))
    found = attributions(load_runs(tmp_path, "quick"))
    assert {one.state for one in found} == {"unpriced", "not_reached"}
    assert "run.json does not hold what it was priced by" in str(found[0].at_static.why_none)


def test_without_a_fixed_strategy_nothing_is_attributed(results):
    for path in (results / "quick").glob("*/fixed-best-gbs16/seed0/result.json"):
        path.unlink()
    assert at_target(results, "cona").state == "no_static"


times = st.floats(1e-3, 1e6)


@given(times, times, times, st.booleans())
def test_the_factors_multiply(static_s, middle_s, run_s, is_reached):
    def ttp(seconds):
        crossing = Crossing(train_s=seconds, interpolated_s=seconds, wall_s=seconds, recharged_s={})
        return Ttp(run=SimpleNamespace(budget_s=static_s), target=10.0, crossing=crossing)

    static = ttp(static_s) if is_reached else Ttp(run=ttp(1.0).run, target=10.0, crossing=None)
    one = Attribution(
        row=ttp(run_s), static=static, at_static=Retimed(seconds=middle_s), at_own_gbs=None
    )
    assert one.state == ("product" if is_reached else "at_least")
    assert one.schedule * one.layout == pytest.approx(one.speedup, rel=1e-12)


# --- the table ----------------------------------------------------------------------------------


def test_records_hold_every_column_and_multiply(results):
    found = records(load_runs(results, "quick"))
    assert all(set(record) == set(COLUMNS) for record in found)
    ours = next(r for r in found if (r["policy"], r["target"]) == ("cona", TARGET))
    assert ours["headline"] == "yes" and ours["over_cona"] == 1.0
    assert ours["static_policy"] == "fixed-best-gbs16"
    assert ours["static_strategy"] == f"{A}-mbs1-gbs16"
    assert ours["schedule_factor"] * ours["layout_factor"] == pytest.approx(ours["speedup"])
    planner = next(r for r in found if (r["policy"], r["target"]) == ("metis-gbs8", TARGET))
    assert planner["over_cona"] == pytest.approx(18 / 10.5)
    assert planner["planning_loss"] == pytest.approx(1.5)


def test_the_page_shows_the_factors_and_whose_belief_differs(results):
    text = markdown("quick", load_runs(results, "quick"))
    (row,) = [line for line in text.splitlines() if line.startswith("| cona ")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["10.5", "–", "12", "1.17", "1.14", "1.33", "1.00"]
    assert f"`fixed-best-gbs16`, {A}-mbs1-gbs16" in text
    assert "Believed otherwise by: `cona`, `fixed-best-gbs16`, `metis-gbs8`." in text


def test_a_shared_belief_is_called_what_it_is(results):
    write(results, "cona", CONA_RUN, belief="table")
    sentence = bias_sentence(load_runs(results, "quick"))
    assert "Time source `table`" in sentence
    assert "Believed otherwise by: `fixed-best-gbs16`, `metis-gbs8`." in sentence
    assert "The other 1 plan with it" in sentence


def test_geometric_means_over_seeds_multiply(results):
    for name, count in (("fixed-best-gbs16", 9), ("cona", 5)):
        content = lines((A, 16, 3), (A, 16, count), ppl=PPL)
        write(results, name, content, kind="offline" if "fixed" in name else "online", seed=1)
    text = markdown("quick", load_runs(results, "quick"))
    (row,) = [line for line in text.splitlines() if line.startswith("| cona ")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    # seed 1: static 24 s, cona 16 s at the static layout throughout: 1.5 x 1
    assert float(cells[3]) == pytest.approx((14 / 12 * 1.5) ** 0.5, abs=0.005)
    assert float(cells[4]) == pytest.approx((12 / 10.5) ** 0.5, abs=0.005)
    assert float(cells[5]) == pytest.approx((14 / 10.5 * 1.5) ** 0.5, abs=0.005)


def test_a_seed_that_others_lack_is_in_no_mean(results):
    write(results, "cona", lines((A, 16, 3), (A, 16, 5), ppl=PPL), seed=1)
    text = markdown("quick", load_runs(results, "quick"))
    (row,) = [line for line in text.splitlines() if line.startswith("| cona ")]
    assert row.split("|")[2].strip() == "10.5"  # of seed 0, as the other rows
    assert "Seeds: 0, those of most policies." in text


def test_the_tables_hold_the_attribution(results):
    names = {path.name for path in write_tables(results, "quick")}
    assert {"attribution.csv", "attribution.md"} <= names
    with (results / "quick/tables/attribution.csv").open() as file:
        assert {row["state"] for row in csv.DictReader(file)} == {"product"}


def test_the_figure_shows_every_level_and_its_factor(results):
    with figure_style():
        figure = draw(load_runs(results, "quick"))
    (panel,) = figure.axes
    names = [text.get_text() for text in panel.get_yticklabels()]
    assert names[0] == "pick of metis-gbs8" and names[-1] == "cona"
    shown = " ".join(text.get_text() for text in panel.texts)
    for part in ("18 s", "12 s  (x 1.50)", "14 s  (x 0.86)", "12 s  (x 1.17)", "10.5 s  (x 1.14)"):
        assert part in shown, part


# --- the waterfall ------------------------------------------------------------------------------


def test_the_waterfall_by_hand(results):
    write(results, "cona-cost=off", lines((B, 8, 4), (B, 8, 6), ppl=PPL))
    write(results, "greedy-oracle", lines((B, 8, 4), ppl=(500.0, 70.0)), kind="bound")
    runs = load_runs(results, "quick")
    found = levels([one for one in attributions(runs) if one.row.target == TARGET])
    assert [(x.label, x.seconds, x.is_step) for x in found] == [
        ("pick of metis-gbs8", pytest.approx(18.0), True),
        ("best layout at its gbs", pytest.approx(12.0), True),
        ("best fixed in hindsight", pytest.approx(14.0), True),
        ("cona's batch sizes there", pytest.approx(12.0), True),
        ("cona", pytest.approx(10.5), True),
        ("cona-cost=off", pytest.approx(10.0), False),
        ("greedy-oracle", None, False),
    ]


def test_the_median_planner_is_no_fixed_one_and_unreached_is_slowest(results):
    for name, count in (("amp-gbs8", 2), ("alpa-gbs8", 30)):
        write(results, name, lines((B, 8, 6), (B, 8, count), ppl=PPL), kind="offline")
    write(results, "piper-gbs8", lines((B, 8, 3), ppl=(500.0, 70.0)), kind="offline")
    ones = [o for o in attributions(load_runs(results, "quick")) if o.row.target == TARGET]
    # amp 8 s, metis 18 s, alpa 36 s, piper not reached: of the middle two the slower
    assert median_planner(ones) == "alpa-gbs8"
    fixed = [o for o in ones if o.row.run.policy in ("fixed-best-gbs16", "cona")]
    assert median_planner(fixed) == "fixed-best-gbs16"


def test_without_cona_there_is_no_waterfall(tmp_path):
    plan = Plan(policy="rampup", kind="schedule", stages=CONA.stages)
    write_run(tmp_path, Simulation(plan=plan).run(), policy="rampup", kind="schedule")
    assert levels(attributions(load_runs(tmp_path, "quick"))) == []
