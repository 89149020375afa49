"""Figures: files and captions, and that nothing overlaps or needs colour."""

import math
import struct
from itertools import combinations, pairwise

import pytest
from fake_runs import ALL, CONA, FIXED, clock, eval_line, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from cona.analysis import figure_perplexity, figure_speedup, figure_timeline
from cona.analysis.figures import PLOTS, write_figures
from cona.analysis.load import load_runs
from cona.analysis.panels import _few, _many, drawn
from cona.analysis.style import figure_style, gbs_color, line_style

POLICIES = [plan.policy for plan in ALL]
DRAWN = [plot for plot in PLOTS if plot.name != "gns_sensitivity"]
"""That one needs runs with a price: test_surface.py."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_tier(folder, models=("bert-large-proxy",), seeds=(0, 1))
    return folder


@pytest.fixture(scope="module")
def written(results):
    return {p.name: p for p in write_figures(results, "quick")}


def test_every_figure_is_png_pdf_and_caption(written):
    assert len(DRAWN) >= 7
    assert {path.stem for path in written.values()} == {plot.name for plot in DRAWN}
    for plot in DRAWN:
        png = written[f"{plot.name}.png"].read_bytes()
        assert png.startswith(b"\x89PNG")
        width, _ = struct.unpack(">II", png[16:24])
        assert width >= 1000
        assert written[f"{plot.name}.pdf"].read_bytes().startswith(b"%PDF")
        assert b"<svg" in written[f"{plot.name}.svg"].read_bytes()


def test_a_picture_for_pages_repeats_neither_title_nor_caption(tmp_path, monkeypatch):
    monkeypatch.setattr("cona.analysis.figures.PLOTS", PLOTS[:1])
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 90.0)])
    texts = []
    monkeypatch.setattr(
        "cona.analysis.figures.image_of",
        lambda figure, suffix: (
            texts.append([suffix, figure._suptitle.get_visible(), figure._supxlabel.get_visible()])
            or b""
        ),
    )
    write_figures(tmp_path, "quick")
    assert texts == [["png", True, True], ["pdf", True, True], ["svg", False, False]]


def test_captions_state_clock_source_n_centre_and_interval(written):
    for plot in DRAWN:
        text = written[f"{plot.name}.txt"].read_text()
        for part in ("modelled", "calculon+head", "stdlib", "data hash `da7a`", "n = 2 seeds"):
            assert part in text, part
        for part in ("centre", "interval"):
            wanted = {"centre": ("centre", "median")}.get(part, (part,))
            assert any(w in text for w in wanted) or (part == "interval" and "band" in text), part


def test_figures_survive_one_policy_and_a_run_that_diverged(tmp_path):
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, None)], status="diverged")
    names = {p.stem for p in write_figures(tmp_path, "quick")}
    assert "strategy_timeline" in names
    assert "speedup_over_target" not in names


def test_switch_points_and_policies_are_all_drawn(results):
    runs = load_runs(results, "quick")
    figure = figure_perplexity.draw(runs)
    panel = figure.axes[0]
    points = [line for line in panel.lines if len(line.get_xdata()) == 1]
    first_seeds = [r for r in runs if r.seed == 0 and r.model == "bert-large-proxy"]
    assert len(points) == sum(r.result["num_switches"] for r in first_seeds) > 5
    assert panel.get_yscale() == "log"
    labels = [line.get_label() for line in panel.lines if not line.get_label().startswith("_")]
    assert sorted(labels) == sorted(POLICIES)


def test_several_seeds_are_drawn_as_the_median_up_to_the_shortest(tmp_path):
    for seed, (end, ppl) in enumerate([(10.0, 100.0), (20.0, 50.0), (20.0, 200.0)]):
        lines = [eval_line(0, 0.0, 400.0), eval_line(128, end, ppl)]
        write_run(tmp_path, lines, seed=seed)
    times, logs = figure_perplexity.common_grid(load_runs(tmp_path, "quick"))
    assert (times[0], times[-1]) == (0.0, 10.0)
    assert logs.shape == (3, len(times))
    halfway = [100.0, (400 * 50) ** 0.5, (400 * 200) ** 0.5]
    assert [float(x) for x in 2.718281828459045 ** logs[:, -1]] == pytest.approx(halfway)


def test_timeline_texts_lie_inside_their_bars(results):
    with figure_style():
        figure = figure_timeline.draw(load_runs(results, "quick"))
        figure.draw_without_rendering()
        for panel in figure.axes:
            bars = [patch.get_window_extent() for patch in panel.patches]
            texts = [t.get_window_extent() for t in panel.texts]
            assert len(bars) == len(texts) > 10
            for bar, text in zip(bars, texts, strict=True):
                assert bar.x0 <= text.x0 and text.x1 <= bar.x1
                assert bar.y0 <= text.y0 and text.y1 <= bar.y1


@given(st.integers(0, 40))
def test_a_timeline_label_is_never_longer_than_its_room(room):
    text = figure_timeline.fitting_label("dp2-tp1-pp2-mbs4-gbs64", room)
    assert all(len(line) < max(room, 1) for line in text.splitlines())
    assert text == "" or "64" in text


def test_the_best_in_hindsight_is_emphasised_and_axes_are_logarithmic(results):
    figure = figure_speedup.draw(load_runs(results, "quick"))
    panel = figure.axes[0]
    widths = {line.get_label(): line.get_linewidth() for line in panel.lines}
    assert max(widths, key=widths.get) == "over best fixed in hindsight"
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert panel.get_xlim()[0] > panel.get_xlim()[1]  # harder targets to the right


def test_speedups_are_drawn_from_interpolated_times_and_not_from_the_first_moments(tmp_path):
    ends = {"cona": (10.0, 100.0), "fixed-best-gbs8": (20.0, 100.0), "fixed-best-gbs16": (9.0, 480)}
    for policy, (seconds, ppl) in ends.items():
        lines = [eval_line(0, 0.0, 500.0), eval_line(128, seconds, ppl)]
        kind = "online" if policy == "cona" else "offline"
        write_run(tmp_path, lines, policy=policy, kind=kind, time_budget_s=100.0)
    panel = figure_speedup.draw(load_runs(tmp_path, "quick")).axes[0]
    drawn = {line.get_label(): line for line in panel.lines}
    over = drawn["over best fixed in hindsight"]
    # cona meets 4 % of the budget, 4 s, at 500*exp(-0.4*1.6094) = 262.7: the next rung is 251
    targets = [float(x) for x in over.get_xdata()]
    assert targets == [251.0, 224.0, 200.0, 178.0, 158.0, 141.0, 126.0, 112.0, 100.0]
    # both curves are straight in log perplexity, so the ratio is 20/10 at every target
    assert list(over.get_ydata()) == pytest.approx([2.0] * 9)
    assert [text.get_text() for text in panel.texts] == ["2.00"]
    # fixed-best-gbs16 alone misses every target: its own colour, at 100 s / TTP(cona)
    bounds = [line for line in panel.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert {line.get_color() for line in bounds} == {gbs_color(16)}
    at = {line.get_xdata()[0]: line.get_ydata()[0] for line in bounds}
    assert at[100.0] == pytest.approx(10.0)


def test_a_bound_over_several_baselines_is_grey(tmp_path):
    for policy in ("cona", "fixed-best-gbs8", "fixed-best-gbs16"):
        kind, ppl = ("online", 100.0) if policy == "cona" else ("offline", 490.0)
        lines = [eval_line(0, 0.0, 500.0), eval_line(128, 10.0, ppl)]
        write_run(tmp_path, lines, policy=policy, kind=kind, time_budget_s=100.0)
    panel = figure_speedup.draw(load_runs(tmp_path, "quick")).axes[0]
    bounds = [line for line in panel.lines if line.get_marker() == "^"]
    assert len(bounds) > 5
    assert {line.get_color() for line in bounds} == {"#555555"}
    assert not panel.texts  # no headline target, so no number


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.75, 1.33, [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]),
        (0.7, 3.3, [0.7, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0]),
        (0.3, 20.0, [0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0]),
    ],
)
def test_ratios_have_round_ticks_as_many_as_fit(low, high, ticks):
    assert _many(low, high) == ticks


@given(st.floats(0.1, 0.95), st.floats(1.05, 100.0))
def test_dense_ticks_include_one_and_keep_apart(low, high):
    ticks = _many(low, high)
    assert 1.0 in ticks
    gaps = [math.log(b / a) for a, b in pairwise(ticks)]
    assert not gaps or min(gaps) >= 0.05 * math.log(high / low)


def test_no_speedup_figure_without_a_baseline(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA,))
    assert figure_speedup.draw(load_runs(tmp_path, "quick")) is None


def test_every_policy_has_its_own_look_with_and_without_colour():
    styles = [line_style(p) for p in POLICIES]
    for one, other in combinations(styles, 2):
        assert one.color != other.color
        assert (one.dash, one.marker) != (other.dash, other.marker)
    assert line_style("someone-elses") == line_style("someone-elses")


def test_larger_batches_are_darker():
    grey = [sum(to_rgb(gbs_color(g))) for g in (8, 16, 32, 64, 128, 256)]
    assert grey == sorted(grey, reverse=True)
    assert len(set(grey)) == len(grey)
    assert [line_style(p.policy).color for p in FIXED] == [gbs_color(g) for g in (8, 16, 32, 64)]


@given(st.floats(0.1, 1e4), st.floats(1.15, 1e4))
def test_ticks_lie_in_the_range_and_are_not_crowded(low, factor):
    for ticks in (_few(low, low * factor), _many(low, low * factor)):
        assert ticks == sorted(set(ticks))
        assert all(low * (1 - 1e-9) <= t <= low * factor * (1 + 1e-9) for t in ticks)
        assert len(ticks) <= 20


def test_the_same_runs_give_the_same_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("cona.analysis.figures.PLOTS", PLOTS[:1])
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 90.0)], clock=clock())
    first = {p: p.read_bytes() for p in write_figures(tmp_path, "quick")}
    assert {p: p.read_bytes() for p in write_figures(tmp_path, "quick")} == first


def test_many_policies_are_not_all_drawn(tmp_path):
    lines = [eval_line(8 * i, 10.0 * i, 100.0) for i in range(3)]
    kept = {"cona": "online", "merrill": "bound", "rampup": "schedule", "cbs-optimistic": "online"}
    fixed = {f"fixed-best-gbs{gbs}": "offline" for gbs in (8, 16, 32, 64, 128)}
    left = {"cona-cost=off": "online", "cona-no-gns": "ablation", "metis-gbs64": "offline"}
    more = {"greedy-oracle-lookahead2": "bound"}
    for policy, kind in {**kept, **fixed, **left}.items():
        write_run(tmp_path, lines, policy=policy, kind=kind)
    assert len(drawn(load_runs(tmp_path, "quick"))) == 12  # all of them
    for policy, kind in more.items():
        write_run(tmp_path, lines, policy=policy, kind=kind)
    found = {run.policy for run in drawn(load_runs(tmp_path, "quick"))}
    assert found == {*kept, *fixed}
