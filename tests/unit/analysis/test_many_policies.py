"""Many policies: their order, few lines in a panel, and pages that begin with what matters."""

from dataclasses import replace

import pytest
from fake_runs import FIXED, write_tier
from hypothesis import given
from hypothesis import strategies as st

from cona.analysis import figure_attribution, figure_profile
from cona.analysis.groups import order
from cona.analysis.load import load_runs
from cona.analysis.panels import MOST_LINES
from cona.analysis.style import line_style
from cona.analysis.table_gap import markdown as gap_page
from cona.analysis.table_speedup import markdown as speedup_page

NAMES = {**{f"fixed-best-gbs{2**k}": "offline" for k in range(3, 9)}, "metis-gbs64": "offline"}
NAMES |= {"copus": "online", "cona": "online", "cona-cost=off": "online", "pollux": "online"}
NAMES |= {"cona-no-gns": "ablation", "rampup": "schedule", "seesaw": "schedule"}
NAMES |= {"greedy-oracle": "bound", "greedy-oracle-charged=on": "bound", "merrill": "bound"}


@given(st.permutations(list(NAMES)))
def test_the_order_of_policies_is_the_same_whatever_was_read_first(names):
    ordered = sorted(names, key=lambda name: order(name, NAMES[name]))
    fixed = [f"fixed-best-gbs{2**k}" for k in range(3, 9)]
    assert ordered == [
        *("cona", "copus", "pollux", "cona-cost=off", "cona-no-gns", "rampup", "seesaw"),
        *(*fixed, "metis-gbs64", "greedy-oracle", "merrill", "greedy-oracle-charged=on"),
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Runs of eighteen policies of one model, which are too many for one panel."""
    folder = tmp_path_factory.mktemp("many")
    plans = [replace(FIXED[0], policy=name, kind=kind) for name, kind in NAMES.items()]
    write_tier(folder, models=("m",), plans=plans)
    return load_runs(folder, "quick")


def test_many_profiles_have_a_panel_for_each_family_with_cona_in_all(many):
    figure = figure_profile.draw(many)
    legends = [[text.get_text() for text in p.get_legend().get_texts()] for p in figure.axes]
    assert [names[0] for names in legends] == ["cona"] * 3
    assert all(len(names) <= 10 for names in legends)
    assert {n for names in legends for n in names} == {
        name for name in NAMES if "=" not in name and name not in ("metis-gbs64", "cona-no-gns")
    }


def test_variants_and_ablations_are_grey_and_last_among_many(many):
    figure = figure_attribution.draw(many)
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows[-3:] == ["cona-cost=off", "cona-no-gns", "greedy-oracle-charged=on"]
    assert rows[4:8] == ["cona", "copus", "pollux", "rampup"]
    points = {
        rows[int(line.get_ydata()[0])]: line.get_color()
        for line in figure.axes[0].lines
        if len(line.get_ydata()) == 1
    }
    assert points["copus"] == line_style("copus").color
    assert points["cona-cost=off"] == points["cona-no-gns"] == "#8c8c8c"


def test_many_policies_have_short_pages(many):
    speedups = [
        row.split("|")[1:3]
        for row in speedup_page("quick", many).splitlines()
        if row.startswith("| ")
    ][1:]
    pairs = [tuple(cell.strip() for cell in row) for row in speedups]
    assert pairs[0] == ("cona", "best fixed in hindsight")
    assert all(m == "cona" or b == "best fixed in hindsight" for m, b in pairs)
    assert len(pairs) == 8 + 9  # cona over seven and hindsight, nine others over hindsight


def test_of_many_policies_the_gap_to_the_best_known_has_rows(many):
    rows = [line.split("|") for line in gap_page("quick", many).splitlines()]
    found = [(row[2].strip(), row[3].strip()) for row in rows if len(row) > 4][2:]
    assert found[0] == ("cona", "best known")
    assert {reference for _, reference in found} == {"best known"}
    assert len(found) == len(NAMES) > MOST_LINES
