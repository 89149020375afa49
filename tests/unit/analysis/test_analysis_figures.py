"""Figures: files and captions, and that nothing overlaps or needs colour."""

import struct
from itertools import combinations

import pytest
from fake_runs import ALL, CONA, FIXED, clock, eval_line, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from cona.analysis import figure_perplexity, figure_speedup, figure_timeline
from cona.analysis.figures import PLOTS, write_figures
from cona.analysis.load import load_runs
from cona.analysis.panels import _binary, _decimal
from cona.analysis.style import figure_style, gbs_color, line_style

POLICIES = [plan.policy for plan in ALL]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_tier(folder, models=("bert-large-proxy",), seeds=(0, 1))
    return folder


@pytest.fixture(scope="module")
def written(results):
    return {p.name: p for p in write_figures(results, "quick")}


def test_every_figure_is_png_pdf_and_caption(written):
    assert len(PLOTS) >= 4
    for plot in PLOTS:
        png = written[f"{plot.name}.png"].read_bytes()
        assert png.startswith(b"\x89PNG")
        width, _ = struct.unpack(">II", png[16:24])
        assert width >= 1000
        assert written[f"{plot.name}.pdf"].read_bytes().startswith(b"%PDF")


def test_captions_state_clock_source_n_centre_and_interval(written):
    for plot in PLOTS:
        text = written[f"{plot.name}.txt"].read_text()
        for part in ("modelled", "calculon+head", "n = 2 seeds", "centre", "interval"):
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
    for ticks in (_decimal(low, low * factor), _binary(low, low * factor)):
        assert ticks == sorted(set(ticks))
        assert all(low * (1 - 1e-9) <= t <= low * factor * (1 + 1e-9) for t in ticks)
        assert len(ticks) <= 20


def test_the_same_runs_give_the_same_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("cona.analysis.figures.PLOTS", PLOTS[:1])
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 90.0)], clock=clock())
    first = {p: p.read_bytes() for p in write_figures(tmp_path, "quick")}
    assert {p: p.read_bytes() for p in write_figures(tmp_path, "quick")} == first
