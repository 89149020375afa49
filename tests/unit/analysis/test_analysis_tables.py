"""Tables as files: what they hold, and what they say about themselves."""

import csv
import json

import pytest
from fake_runs import (
    CONA,
    FIXED,
    ORACLE,
    PAPER,
    Plan,
    Simulation,
    clock,
    eval_line,
    strategy,
    write_run,
    write_tier,
)
from hypothesis import given
from hypothesis import strategies as st

from cona.analysis.markdown import number, percent
from cona.analysis.tables import write_tables

MODELS = ("bert-large-proxy", "gpt3-1.3b-proxy")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_tier(results, models=MODELS, plans=(CONA, PAPER, ORACLE, *FIXED))
    paths = write_tables(results, "quick")
    assert {p.parent for p in paths} == {results / "quick/tables"}
    return {p.name: p.read_text() for p in paths}


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def test_every_table_is_written(tables):
    assert {"ttp.csv", "ttp.md", "speedup.csv", "speedup.md", "oracle_gap.csv"} <= set(tables)
    assert {"oracle_gap.md", "summary.csv", "summary.md", "switches.md"} <= set(tables)


def test_all_policies_of_a_model_have_the_same_rows(tables):
    rows = rows_of(tables["ttp.csv"])
    for model in MODELS:
        targets = {}
        for row in rows:
            if row["model"] == model:
                targets.setdefault(row["policy"], []).append(row["target"])
        assert len(targets) == 7
        assert len({tuple(t) for t in targets.values()}) == 1


def test_not_reached_is_an_empty_cell_and_never_a_number(tables):
    rows = rows_of(tables["ttp.csv"])
    assert {r["reached"] for r in rows} == {"yes", "no"}
    for row in rows:
        times = [row[k] for k in row if k.startswith("ttp_")]
        assert len(times) == 6
        assert all(times) if row["reached"] == "yes" else not any(times)
    assert "not reached" in tables["ttp.md"]
    for text in tables.values():
        assert "nan" not in text.lower() and "inf" not in text.lower().replace("information", "")


def test_the_headline_is_one_reached_target_for_each_model(tables):
    for model in MODELS:
        rows = [r for r in rows_of(tables["ttp.csv"]) if r["model"] == model]
        (headline,) = {r["target"] for r in rows if r["headline"] == "yes"}
        fixed = [r for r in rows if r["policy"].startswith("fixed-best")]
        reached = [float(r["target"]) for r in fixed if r["reached"] == "yes"]
        assert float(headline) == min(reached)
        assert {r["reached"] for r in fixed if r["target"] == headline} == {"yes", "no"}
        assert f"**{headline.removesuffix('.0')}**" in tables["ttp.md"]


def test_interpolation_is_never_later_than_the_evaluation(tables):
    for row in rows_of(tables["ttp.csv"]):
        if row["reached"] == "yes":
            assert 0 < float(row["ttp_interpolated_s"]) <= float(row["ttp_train_s"])
            presets = [float(row[f"ttp_recharged_{p}_s"]) for p in ("zero", "live", "restart")]
            assert presets == sorted(presets)
            assert presets[1] == pytest.approx(float(row["ttp_train_s"]))


def test_speedups_agree_with_the_ttp_table(tables):
    times = {
        (r["model"], r["policy"], r["target"]): r["ttp_train_s"] for r in rows_of(tables["ttp.csv"])
    }
    checked = 0
    for row in rows_of(tables["speedup_by_seed.csv"]):
        if row["state"] != "ratio":
            assert not row["speedup"]
            continue
        key = row["model"], row["target"]
        ours = float(times[key[0], row["method"], key[1]])
        theirs = float(times[key[0], row["baseline_policy"], key[1]])
        assert float(row["speedup"]) == pytest.approx(theirs / ours)
        checked += 1
    assert checked > 50


def test_every_page_names_clock_source_belief_and_n(tables):
    for name, text in tables.items():
        if name.endswith(".md"):
            title = text.splitlines()[0]
            assert "n = 1 (one seed: no interval)" in title
            for part in (
                "modelled",
                "calculon+head",
                "the policies believe",
                "modelled, not measured",
            ):
                assert part in text, (name, part)
            assert "gpt3-1.3b-proxy as gpt3-1.3b" in text
            assert "Text: `stdlib`, the source of Python's standard library; data hash" in text
            assert "Every finished run found under `results/<tier>/<model>/` is shown." in text


def test_summary_shows_the_chain(tables):
    assert f"{strategy(8)} → {strategy(16)} @ 512" in tables["summary.md"]
    (row,) = [
        r
        for r in rows_of(tables["summary.csv"])
        if (r["model"], r["policy"]) == (MODELS[0], "cona")
    ]
    assert (row["status"], row["num_switches"], row["num_gbs_switches"]) == ("finished", "3", "3")


def test_switches_page_needs_no_noise_if_cona_switched_often(tables):
    assert "fewer than 2 times: none." in tables["switches.md"]
    assert "GNS in the stage" not in tables["switches.md"]


def test_few_switches_are_explained_by_noise_and_thresholds(tmp_path):
    lazy = Plan(policy="cona", kind="online", stages=((0, strategy(8)), (512, strategy(16))))
    lines = Simulation(plan=lazy, budget_s=100.0).run()
    write_run(tmp_path, lines, policy="cona")
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/switches.md").read_text()
    assert "gpt3-1.3b-proxy/cona/seed0, switches: 1" in text
    # T(8) = 1.0 s and T(16) = 1.4 s: GNS* = 8*16*0.4/(16*1.0 - 8*1.4) = 10.67
    (line,) = [row for row in text.splitlines() if row.startswith(f"| {strategy(8)} ")]
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert (cells[1], cells[4], cells[5]) == ("0 – 512", "10.7", "made up")
    # the decision that ended the first stage belongs to it, not to the one that it began:
    # from 16 to 32, GNS* = 16*32*0.8/(32*1.4 - 16*2.2) = 42.67 only
    (line,) = [row for row in text.splitlines() if row.startswith(f"| {strategy(16)} ")]
    assert line.split("|")[5].strip() == "42.7"
    low, high = (float(x) for x in cells[2].split(" – "))
    seen = [x["gns"] for x in lines if x["kind"] == "step" and x["samples"] <= 512 and x["gns"]]
    assert (low, high) == (pytest.approx(min(seen), rel=5e-3), pytest.approx(max(seen), rel=5e-3))


def test_a_stage_without_decision_or_crossing_has_no_threshold(tmp_path):
    write_run(tmp_path, Simulation(plan=FIXED[0], budget_s=20.0).run(), policy="cona")
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/switches.md").read_text()
    (line,) = [row for row in text.splitlines() if row.startswith(f"| {strategy(8)} ")]
    assert [c.strip() for c in line.split("|")[5:7]] == ["–", "–"]


def test_a_diverged_run_is_named_and_does_not_stop_the_tables(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA, ORACLE, FIXED[0]))
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, None)]
    fixed = {"policy": "fixed-best-gbs64", "kind": "offline", "clock": clock(priced_as="m")}
    write_run(tmp_path, lines, model="m", status="diverged", **fixed)
    write_tables(tmp_path, "quick")
    folder = tmp_path / "quick/tables"
    assert "Diverged: m/fixed-best-gbs64/seed0." in (folder / "ttp.md").read_text()
    gaps = rows_of((folder / "oracle_gap.csv").read_text())
    states = {r["reference"]: r["state"] for r in gaps if r["policy"] == "fixed-best-gbs64"}
    assert states == {"greedy-oracle": "no_overlap", "best known": "no_overlap"}


def test_several_seeds_get_points_and_an_interval(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA, FIXED[0]), seeds=(0, 1, 2))
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/speedup.md").read_text()
    assert "n = 3 seeds" in text.splitlines()[0]
    rows = rows_of((tmp_path / "quick/tables/speedup.csv").read_text())
    exact = [r for r in rows if r["state"] == "ratio"]
    assert exact
    assert all(float(r["speedup_low"]) <= float(r["speedup_high"]) for r in exact)
    assert {r["n"] for r in rows} == {"3"}


def test_one_policy_alone_is_enough_for_every_table(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA,))
    write_tables(tmp_path, "quick")
    folder = tmp_path / "quick/tables"
    assert "Nothing to compare" in (folder / "speedup.md").read_text()
    assert "No oracle among the finished runs." in (folder / "oracle_gap.md").read_text()
    assert rows_of((folder / "oracle_gap.csv").read_text()) == []


def test_writing_again_gives_the_same_bytes(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA, ORACLE, FIXED[0]))
    first = {p: p.read_bytes() for p in write_tables(tmp_path, "quick")}
    assert {p: p.read_bytes() for p in write_tables(tmp_path, "quick")} == first


def test_a_belief_that_differs_from_the_clock_is_not_called_the_same(tmp_path):
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 100.0)]
    path = write_run(tmp_path, lines, belief="calculon")
    assert json.loads((path / "result.json").read_text())["belief"] == "calculon"
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/ttp.md").read_text()
    assert "the policies believe `calculon`." in text
    assert "knows the clock exactly" not in text


def fall_to(results, policy, ppl, **changes):
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, ppl)]
    return write_run(results, lines, policy=policy, **changes)


def test_rungs_without_a_column_are_said_to_be_in_the_csv(tmp_path):
    fall_to(tmp_path, "fixed-best-gbs8", 100.0, kind="offline")
    fall_to(tmp_path, "cona", 40.0)
    write_tables(tmp_path, "quick")
    for name in ("ttp", "speedup"):
        text = (tmp_path / f"quick/tables/{name}.md").read_text()
        # 44.7 is the hardest rung that cona reached, 79.4 the sixth from there
        assert "| **100** | 79.4" in " ".join(text.split())
        assert f"all rungs are in `{name}.csv`" in text
        assert "Rungs without a column: between 100 and 79.4." in text
    fall_to(tmp_path, "fixed-best-gbs8", 60.0, kind="offline")
    write_tables(tmp_path, "quick")
    assert "Rungs without" not in (tmp_path / "quick/tables/ttp.md").read_text()


def test_a_weak_policy_does_not_move_the_headline_and_says_not_reached(tmp_path):
    fall_to(tmp_path, "fixed-best-gbs8", 100.0, kind="offline")
    fall_to(tmp_path, "cona", 90.0)
    fall_to(tmp_path, "rampup", 300.0, kind="schedule")
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/speedup.csv").read_text()
    bold = {r["method"]: r for r in rows_of(text) if r["headline"] == "yes"}
    assert {r["target"] for r in bold.values()} == {"100.0"}
    assert (bold["cona"]["state"], bold["rampup"]["state"]) == ("ratio", "not_reached")


def test_no_headline_is_said_so_if_no_fixed_strategy_improved(tmp_path):
    fall_to(tmp_path, "fixed-best-gbs8", None, kind="offline", status="diverged")
    fall_to(tmp_path, "cona", 90.0)
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/ttp.md").read_text()
    assert "reached no target at every seed: no headline target." in text


def test_texts_are_named_by_hash_and_model(tmp_path):
    fall_to(tmp_path, "cona", 100.0, model="a", data_hash="aaaa")
    fall_to(tmp_path, "rampup", 100.0, model="a", data_hash="aaaa")
    path = fall_to(tmp_path, "cona", 100.0, model="b", data_hash="bbbb")
    (path / "run.json").write_text(json.dumps({"tier": {"data": {"corpus": "text:books"}}}))
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/ttp.md").read_text()
    assert "standard library / `text:books`; data hash `aaaa` (a), `bbbb` (b)." in text


def test_a_text_that_is_not_recorded_is_said_so(tmp_path):
    (fall_to(tmp_path, "cona", 100.0) / "run.json").unlink()
    write_tables(tmp_path, "quick")
    text = (tmp_path / "quick/tables/ttp.md").read_text()
    assert "- Text: not recorded; data hash `da7a`." in text


def test_numbers_as_text():
    assert [number(x) for x in (0.0, 12345.6, 300.0, 86.4, None)] == (
        ["0", "12,350", "300", "86.4", "–"]
    )
    assert [percent(x) for x in (0.026, -0.01, None)] == ["+2.60%", "-1.00%", "–"]


@given(st.floats(1e-3, 1e9))
def test_numbers_keep_four_digits_and_have_no_exponent(value):
    text = number(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=6e-4)
