"""The planner report of a tier: every planner at every rung, judged by the tier's clock."""

import csv

import pytest

from cona import config
from cona.analysis import table_planners
from cona.analysis.table_planners import COLUMNS, markdown, records, write_planners
from cona.planners.report import planner_names
from cona.scene import Scene
from cona.specs import TierSpec
from cona.strategy import Strategy

NAMES = ["calculon", "fixed-best", "metis"]
TIER = config.override(
    config.load(TierSpec, "smoke"), {"ladder.gbs_max": 16, "cluster": "a100x4-2node"}
)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_planners, "planner_names", lambda: NAMES)
        return records(TIER)


def test_every_planner_answers_at_every_rung(found):
    assert set(NAMES) <= set(planner_names())
    wanted = [(gbs, name) for gbs in (8, 16) for name in NAMES]
    assert [(r["gbs"], r["planner"]) for r in found] == wanted
    assert {r["model"] for r in found} == {"gpt3-1.3b-proxy"}
    assert {r["priced_as"] for r in found} == {"gpt3-1.3b"}
    assert all(set(r) == set(COLUMNS) for r in found)


def test_truth_is_the_reference_clock(found):
    reference = Scene.of(TIER, "gpt3-1.3b-proxy").reference
    space = Scene.of(TIER, "gpt3-1.3b-proxy").space
    for record in found:
        (strategy,) = (s for s in space.at(record["gbs"]) if str(s) == record["strategy"])
        assert record["true_s"] == pytest.approx(reference.time_s(strategy), rel=1e-12)
        assert Strategy.parse(record["strategy"]).gbs == record["gbs"]


def test_nothing_is_better_than_the_bound(found):
    for record in found:
        assert record["over_best"] >= -1e-12
        if record["planner"] == "fixed-best":
            assert record["over_best"] == pytest.approx(0.0, abs=1e-12)
            assert record["believed_s"] == pytest.approx(record["true_s"])


def test_a_planner_that_brings_a_belief_is_named(found):
    beliefs = {r["planner"]: r["belief"] for r in found}
    assert beliefs["metis"] == "improved"
    text = markdown(TIER, found)
    differing = [name for name in NAMES if beliefs[name] != "improved"]
    assert f"by another model for: {', '.join(f'`{n}`' for n in differing) or 'none'}." in text


def test_the_report_is_written_beside_the_tables(found, tmp_path, monkeypatch):
    monkeypatch.setattr(table_planners, "records", lambda tier: found)
    csv_path, md_path = write_planners(tmp_path, TIER)
    assert csv_path == tmp_path / "smoke/tables/planners.csv"
    with csv_path.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(r["true_s"]) for r in rows] == [r["true_s"] for r in found]
    text = md_path.read_text()
    assert "## gpt3-1.3b-proxy, priced as gpt3-1.3b" in text and "### gbs 16" in text
    for record in found:
        assert record["plan"] in text


def test_a_planner_without_a_plan_says_why(found):
    nothing = dict.fromkeys(COLUMNS) | {"remark": "nothing feasible", "gbs": 8, "planner": "amp"}
    nothing |= {"model": "m", "priced_as": "m", "search_s": 0.5, "belief": "improved"}
    text = markdown(TIER, [*found, nothing])
    assert "- amp: nothing feasible" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| amp")]
    assert row.count("–") == 6
