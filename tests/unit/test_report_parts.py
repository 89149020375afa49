"""The parts of the report: files in order, the decision log, timelines and costs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import CONA, FIXED, ORACLE, Plan, Simulation, strategy, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from problems import tiny_cluster, tiny_model
from report_files import MODEL, tier, write_figure, write_pages

from cona.analysis.load import load_runs
from cona.report import costs, decisions, page, timelines
from cona.report.page import write_report
from cona.report.shapes import WIDTH, parts
from cona.report.shown import figures, pages, split


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    write_tier(folder, models=(MODEL,), plans=(ORACLE, CONA, FIXED[0]))
    return folder


# --- files ----------------------------------------------------------------------------------------


def test_unknown_pages_come_after_the_known_ones_and_missing_ones_are_left_out(
    tmp_path: Path,
) -> None:
    write_pages(tmp_path, "zebra", "planners", "ttp", "apple", "claims")
    first, second, last = split(pages(tmp_path / "quick" / "tables"))
    names = [[one.place.name for one in group] for group in (first, second, last)]
    assert names == [["claims"], ["ttp", "apple", "zebra"], ["planners"]]
    assert pages(tmp_path / "nothing") == []


def test_figures_are_in_order_and_the_one_without_a_title_wins(tmp_path: Path) -> None:
    for name, suffix in (("attribution", ".png"), ("b", ".svg"), ("b", ".png"), ("a", ".svg")):
        write_figure(tmp_path, name, suffix)
    found = figures(tmp_path / "quick" / "figures")
    assert [(f.name, f.url.partition(";")[0]) for f in found] == [
        ("attribution", "data:image/png"),
        ("a", "data:image/svg+xml"),
        ("b", "data:image/svg+xml"),
    ]
    assert (found[1].title, found[1].caption) == ("Title of a", "Caption of a.")


# --- decisions ------------------------------------------------------------------------------------


def decision(index: int, action: str) -> dict[str, Any]:
    return {"iteration": index, "action": action}


@given(st.lists(st.sampled_from(["switch", "stay"])), st.integers(0, 80))
def test_thinning_keeps_order_and_switches_first(actions: list[str], most: int) -> None:
    log = [decision(i, action) for i, action in enumerate(actions)]
    kept = decisions.thinned(log, most)
    assert len(kept) == min(most, len(log))
    places = [d["iteration"] for d in kept]
    assert places == sorted(set(places))
    num_switches = actions.count("switch")
    assert sum(d["action"] == "switch" for d in kept) == min(num_switches, most)


@given(st.integers(2, 500), st.integers(2, 100))
def test_spread_is_even_with_both_ends(num: int, most: int) -> None:
    kept = decisions.spread(range(num), most)
    assert (kept[0], kept[-1]) == (0, num - 1)
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps) - min(gaps) <= 1


@given(st.integers(0, 1000))
def test_the_whole_log_is_bounded(num_runs: int) -> None:
    rows = decisions.rows_per_run(num_runs)
    assert 6 <= rows <= decisions.MOST_ROWS_OF_RUN
    assert rows * num_runs <= max(decisions.MOST_ROWS, 6 * num_runs)


def test_the_size_of_forty_policies_five_seeds_and_three_models() -> None:
    """All of them decide all the time; figures and tables are not counted here."""
    record = {
        "iteration": 12_345,
        "samples": 123_456,
        "strategy": strategy(256, "dp16-tp16-pp16"),
        "next": strategy(256, "dp16-tp16-pp16"),
        "action": "stay",
        "reason": "the switch costs 0.885 s, more than it gains",
        "details": {"gns": 123.4, "gns_low": 101.2, "gns_high": 234.5, "gns_star": 14.85}
        | dict.fromkeys(("t_cur_s", "t_next_s", "r", "net_s", "cost_s"), 0.123456),
    }
    runs = [
        SimpleNamespace(
            decisions=[record] * 500,
            model="m",
            policy=f"policy{p}",
            seed=s,
            name=f"m/policy{p}/{s}",
        )
        for p in range(120)
        for s in range(5)
    ]
    logs = decisions.log(runs)  # type: ignore[arg-type]
    macros = page._templates().get_template("macros.html").module
    size = sum(len(macros.table(log.table, log.run.name)) for log in logs)  # type: ignore[attr-defined]
    assert len(logs) == 600
    assert 1e6 < size < 3e6


def test_a_log_shows_numbers_and_no_empty_column(results: Path) -> None:
    (run,) = [r for r in load_runs(results, "quick") if r.name == f"{MODEL}/cona/seed0"]
    (log,) = decisions.log([run])
    assert log.num_switches == 3 and log.num_decisions == len(run.decisions)
    assert log.table.head == (
        *("samples", "action", "reason", "strategy", "next", "GNS [90 % interval]"),
        *("iteration", "other numbers"),
    )
    first = log.table.rows[0]
    assert first[1:5] == ("stay", "made up", strategy(8), strategy(16))
    assert first[6:] == ("10", "gns_star 10.67")  # 8*16*0.4/(16*1.0 - 8*1.4)


def test_noise_with_its_interval() -> None:
    assert (
        decisions.noise({"gns": 21.366, "gns_low": 17.04, "gns_high": 26.78}) == "21.4 [17, 26.8]"
    )
    assert decisions.noise({"gns": 5, "gns_low": 4, "gns_high": None}) == "5 [4, unbounded]"
    assert decisions.noise({"gns": 5.0}) == "5"
    assert decisions.noise({"gns": None}) == decisions.noise({"gns": "never"}) == ""


# --- timelines and costs --------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50))
def test_the_parts_of_a_bar_fill_it_without_gaps(lengths: list[float]) -> None:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    pieces = [(a, b, "#000000", "w") for a, b in zip([0.0, *ends], ends, strict=False)]
    bar = parts(pieces, ends[-1])
    assert bar[-1].x + bar[-1].width == pytest.approx(WIDTH, abs=0.2)
    for before, after in pairwise(bar):
        assert before.x + before.width == pytest.approx(after.x, abs=0.2)


def test_a_timeline_is_the_stages_over_the_clock(results: Path) -> None:
    runs = [r for r in load_runs(results, "quick") if r.seed == 0]
    lines = {line.run.policy: line for line in timelines.timelines(runs)[MODEL]}
    cona, oracle = lines["cona"], lines["greedy-oracle"]
    assert cona.sizes == "gbs 8 → 16 → 32 → 64"
    assert oracle.sizes == "gbs 8 → 16 → 8 → 16 → 32 → 16 → 32 → 64"
    assert oracle.name == "greedy-oracle (bound)"
    assert len(cona.bar) == len(cona.table.rows) == cona.num_stages == 4
    stages = cona.run.result["stages"]
    end_s = max(float(line.run.result["train_s"]) for line in lines.values())
    assert cona.bar[1].x == pytest.approx(stages[1]["train_s"] / end_s * WIDTH, abs=0.05)
    assert cona.table.rows[1][0] == strategy(16)
    assert [words for words, _ in timelines.legend(runs)] == [f"gbs {g}" for g in (8, 16, 32, 64)]


def test_many_stages_are_cut_in_the_table_and_not_in_the_bar(tmp_path: Path) -> None:
    stages = tuple((64 * i, strategy((8, 16)[i % 2])) for i in range(60))
    plan = Plan(policy="greedy-oracle", kind="bound", stages=stages)
    write_run(tmp_path, Simulation(plan=plan, budget_s=700.0).run(), policy=plan.policy)
    (line,) = timelines.timelines(load_runs(tmp_path, "quick"))["gpt3-1.3b-proxy"]
    assert len(line.table.rows) == timelines.MOST_STAGES < line.num_stages == len(line.bar)
    assert line.sizes == "gbs 8 → 16 → 8 → 16 → … → 16 → 8 → 16"
    text = write_report(tmp_path, tier()).read_text()
    assert f"{timelines.MOST_STAGES} of {line.num_stages} stages" in text


def test_a_breakdown_is_the_reference_clocks(tmp_path: Path) -> None:
    model, cluster = tiny_model(), tiny_cluster()
    plan = Plan(policy="fixed-best-gbs8", kind="offline", stages=((0, "dp2-tp1-pp1-mbs1-gbs8"),))
    path = write_run(tmp_path, Simulation(plan=plan, budget_s=20.0).run(), policy=plan.policy)
    run = load_runs(tmp_path, "quick")[0]
    assert costs.breakdowns([run])[0].why_none.startswith("No breakdown: gpt3-1.3b-proxy/fixed")
    info = {
        "tier": {"ladder": {"gbs_min": 8, "gbs_max": 8}, "techniques": {}},
        "priced_model": model.model_dump(mode="json"),
        "cluster": cluster.model_dump(mode="json"),
    }
    (path / "run.json").write_text(json.dumps(info))
    run = load_runs(tmp_path, "quick")[0]
    # 0.6 + 0.05 * 8 = 1 s is not what the cost model gives: a report must not pretend it is
    assert "was charged 1 s" in costs.breakdowns([run])[0].why_none
    priced_s = costs.reference_of(run).time.time_s(costs.reference_of(run).parse(strategy_of(run)))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line["iteration_s"] = priced_s
    write_run(tmp_path, lines, policy=plan.policy)
    (path / "run.json").write_text(json.dumps(info))
    (found,) = costs.breakdowns(load_runs(tmp_path, "quick"))
    assert found.why_none == "" and found.num_used == 1
    (row,) = found.table.rows
    assert row[0] == strategy_of(run) and row[4] == "100.0%"
    assert float(row[1]) == pytest.approx(priced_s, rel=1e-3)
    shares = [float(cell.removesuffix("%")) for cell in row[5:]]
    assert sum(shares) == pytest.approx(100.0, abs=0.1 * len(shares))
    assert found.bars[0][1][-1].x + found.bars[0][1][-1].width == pytest.approx(WIDTH, abs=0.2)
    assert {words for words, _ in costs.legend([found])} >= {"compute"}


def strategy_of(run: Any) -> str:
    return str(run.result["stages"][0]["strategy"])


def test_measured_seconds_have_no_parts(tmp_path: Path) -> None:
    clock = {"kind": "measured", "time_source": "measured", "switch_cost": "measured"}
    clock |= {"cluster": "local-cpu", "priced_as": None, "unit": "seconds"}
    write_run(tmp_path, Simulation(plan=ORACLE, budget_s=20.0).run(), clock=clock)
    text = write_report(tmp_path, tier()).read_text()
    assert "no cost model has split them" in text
    assert '<span class="label">measured seconds</span>' in text
    assert "proxy models</span>" not in text
