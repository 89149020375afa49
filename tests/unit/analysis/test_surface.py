"""The shape of the speed-up: its surface, its sensitivity to noise, and performance profiles."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import CONA, FIXED, eval_line, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

import cona.analysis.sensitivity as sensitivity
from cona import config
from cona.analysis import figure_profile, figure_sensitivity, figure_surface
from cona.analysis.figure_surface import borders
from cona.analysis.load import load_runs
from cona.analysis.panels import MOST_LINES, families
from cona.analysis.performance_profile import Profile, profiles
from cona.analysis.sensitivity import FACTORS, Sensitivity, believed_factor, sensitivities
from cona.analysis.speedup import HINDSIGHT
from cona.analysis.style import figure_style, line_style
from cona.analysis.surface import surfaces
from cona.analysis.table_profile import markdown as profile_page
from cona.analysis.table_sensitivity import markdown as sensitivity_page
from cona.analysis.table_sensitivity import records as sensitivity_records
from cona.analysis.table_surface import markdown as surface_page
from cona.analysis.table_surface import records as surface_records
from cona.specs import ClusterSpec, ModelSpec, TierSpec


def fall(
    results: Path, policy: str, seconds: float, ppl: float = 100.0, *, seed: int = 0, **changes: Any
) -> Path:
    """Write a run that falls from 500 to ``ppl``, linear in log perplexity; the budget is 100 s."""
    kind = "online" if policy.startswith("cona") else "offline"
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, seconds, ppl)]
    return write_run(
        results, lines, policy=policy, kind=kind, seed=seed, time_budget_s=100.0, **changes
    )


# --- the surface ----------------------------------------------------------------------------------


@pytest.fixture
def surface(tmp_path: Path) -> Any:
    fall(tmp_path, "cona", 40.0)
    fall(tmp_path, "fixed-best-gbs8", 80.0)
    fall(tmp_path, "fixed-best-gbs16", 20.0, 200.0)  # fast, and then it misses the rest
    fall(tmp_path, "metis-gbs16", 90.0)  # no fixed-best: not on the surface
    return load_runs(tmp_path, "quick")


def test_the_surface_by_hand(surface: Any) -> None:
    (found,) = surfaces(surface)
    assert found.gbs == (8, 16)
    assert (found.targets[-1], found.headline) == (100.0, 100.0)
    # straight lines in log perplexity: cona takes 40 s for log 5, gbs 16 takes 20 s for log 2.5
    assert all(found.centre(8, t) == pytest.approx(2.0) for t in found.targets)
    ratio = (20 / math.log(2.5)) / (40 / math.log(5))
    assert found.centre(16, 251.0) == pytest.approx(ratio)
    assert found.cells[16, 178.0].state == "at_least"
    cona_s = 40 * math.log(500 / 178) / math.log(5)
    assert found.centre(16, 178.0) == pytest.approx(100 / cona_s)
    assert (found.best_gbs[251.0], found.best_gbs[178.0]) == (16, 8)
    # 4 % of the budget is 4 s, at 500/5**0.1 = 425.7
    assert found.targets[0] == 398.0
    assert found.share(1.9) == pytest.approx(
        (len(found.targets) + sum(found.cells[16, t].centre >= 1.9 for t in found.targets))
        / len(found.cells)
    )


def test_the_page_marks_the_best_in_hindsight_and_the_bounds(surface: Any) -> None:
    page = surface_page("quick", surface)
    (row,) = [line for line in page.splitlines() if line.startswith("| 16 ")]
    assert "_0.88_" in row and "≥ 2.50" in row
    assert "at least 9.6 in 0%" in page
    records = surface_records(surface)
    best = {(r["target"], r["gbs"]) for r in records if r["best_in_hindsight"] == "yes"}
    assert {(251.0, 16), (100.0, 8)} <= best
    assert len(best) == len({r["target"] for r in records})


def test_a_target_that_cona_missed_is_an_empty_cell(tmp_path: Path) -> None:
    fall(tmp_path, "cona", 40.0, 150.0)
    fall(tmp_path, "fixed-best-gbs8", 80.0)
    (found,) = surfaces(load_runs(tmp_path, "quick"))
    assert found.centre(8, 100.0) is None
    assert found.centre(8, 158.0) is not None
    page = surface_page("quick", load_runs(tmp_path, "quick"))
    assert "not reached" in page


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_level_lines_separate_inside_from_outside(rows: list[list[bool]]) -> None:
    inside = np.array(rows)
    edges = list(borders(inside, np.zeros_like(inside)))
    across = sum(int((a != b).sum()) for a, b in pairwise(inside))
    along = sum(int((a != b).sum()) for a, b in pairwise(inside.T))
    assert len(edges) == len(set(edges)) == across + along
    assert not list(borders(inside, np.ones_like(inside)))


def test_surface_numbers_do_not_overlap(tmp_path: Path) -> None:
    write_tier(tmp_path, models=("m",), plans=(CONA, *FIXED), seeds=(0, 1, 2))
    with figure_style():
        figure = figure_surface.draw(load_runs(tmp_path, "quick"))
        assert figure is not None
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) > 20
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


# --- profiles -------------------------------------------------------------------------------------


def test_a_profile_by_hand(tmp_path: Path) -> None:
    fall(tmp_path, "cona", 40.0)
    fall(tmp_path, "fixed-best-gbs8", 80.0)
    fall(tmp_path, "fixed-best-gbs16", 40.0, 200.0)
    found = {p.policy: p for p in profiles(load_runs(tmp_path, "quick")).profiles}
    # targets of at least 4 s under the fastest: 398 ... 100, 13 rungs; gbs 16 reaches 398 ... 200
    assert {p.num_problems for p in found.values()} == {13}
    assert (found["cona"].share(1.0), found["fixed-best-gbs8"].share(1.99)) == (1.0, 0.0)
    assert found["fixed-best-gbs8"].share(2.0001) == 1.0
    assert len(found["fixed-best-gbs16"].ratios) == 7
    assert found["fixed-best-gbs16"].share(math.inf) == 7 / 13


def test_seeds_of_most_policies_count_and_who_lacks_one_is_left_out(tmp_path: Path) -> None:
    for seed in (0, 1, 2, 3):
        fall(tmp_path, "cona", 40.0, seed=seed)
    for policy in ("fixed-best-gbs8", "fixed-best-gbs16"):
        for seed in (0, 1):
            fall(tmp_path, policy, 50.0, seed=seed)
    fall(tmp_path, "metis-gbs8", 1.0)
    runs = load_runs(tmp_path, "quick")
    found = profiles(runs)
    assert (found.seeds.seeds, found.seeds.left_out) == ((0, 1), ("metis-gbs8",))
    assert {p.num_problems for p in found.profiles} == {2 * 13}
    assert "Left out, for they lack some: `metis-gbs8`." in profile_page("quick", runs)


@given(st.lists(st.floats(1, 100), max_size=20), st.floats(1, 100), st.floats(1, 100))
def test_a_profile_rises_to_the_share_that_was_reached(
    ratios: list[float], one: float, other: float
) -> None:
    profile = Profile(policy="p", kind="online", ratios=tuple(sorted(ratios)), num_problems=20)
    low, high = sorted((one, other))
    assert 0 <= profile.share(low) <= profile.share(high) <= len(ratios) / 20


# --- sensitivity ----------------------------------------------------------------------------------


def test_factors_are_read_from_policies() -> None:
    names = ("cona", "cona-noise0.25", "cona-noise16", "cona-noise4-cost=off", "cona-paper")
    assert [believed_factor(name) for name in names] == [1.0, 0.25, 16.0, None, None]


def test_believed_runs_are_compared_at_the_headline_target(tmp_path: Path) -> None:
    for policy, seconds in (("cona", 40.0), ("cona-noise4", 50.0), ("fixed-best-gbs8", 80.0)):
        fall(tmp_path, policy, seconds)
    (found,) = sensitivities(load_runs(tmp_path, "quick"))
    centres = {s.method: s.centre for s in found.believed if s.baseline == HINDSIGHT}
    assert centres == {"cona": 2.0, "cona-noise4": 1.6}
    assert found.why_none is not None and "run.json does not hold" in found.why_none
    page = sensitivity_page("quick", load_runs(tmp_path, "quick"), [found])
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {HINDSIGHT}")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["2.00", "1.60"]
    assert found.why_none in page


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Sensitivity:
    """Return what is modelled on a short recorded run of `cona` at gbs 8, priced by `improved`."""
    results = tmp_path_factory.mktemp("results")
    tier = config.load(TierSpec, "smoke")
    priced, cluster = config.load(ModelSpec, "gpt3-1.3b"), config.load(ClusterSpec, tier.cluster)
    info = {"tier": tier, "priced_model": priced, "cluster": cluster}
    plain = {key: spec.model_dump(mode="json") for key, spec in info.items()}
    path = fall(results, "cona", 40.0)
    (path / "run.json").write_text(json.dumps(plain))
    (run,) = load_runs(results, "quick")
    run.clock["time_source"] = "improved"
    run.result["clock"]["time_source"] = "improved"
    seconds = _iteration_s(run)
    steps = [step(i, seconds) for i in range(60)]
    lines = [eval_line(0, 0.0, 500.0), *steps, eval_line(480, 60 * seconds, 100.0)]
    path = write_run(results, lines, policy="cona", clock=run.result["clock"])
    (path / "run.json").write_text(json.dumps(plain))
    (found,) = sensitivities(load_runs(results, "quick"))
    return found


STRATEGY = "dp4-tp1-pp1-mbs2-gbs8"


def _iteration_s(run: Any) -> float:
    reference = sensitivity.reference_of(run)
    return reference.time.time_s(reference.fastest(8))


def step(index: int, seconds: float) -> dict[str, Any]:
    gns = 4.0 + index
    return {
        "kind": "step",
        "iteration": index + 1,
        "samples": 8 * (index + 1),
        "strategy": STRATEGY,
        "gbs": 8,
        "skipped": False,
        "tr_sigma": gns,
        "mu_sq": 1.0,
        "gns": gns,
        "gns_low": gns * 0.9,
        "gns_high": gns * 1.1,
        "iteration_s": seconds,
        "train_s": seconds * (index + 1),
    }


def test_the_modelled_times_are_those_of_the_formula(modelled: Sensitivity) -> None:
    assert modelled.why_none is None
    assert [one.factor for one in modelled.modelled] == list(FACTORS)
    one = modelled.modelled[1]
    # at factor 1 the fixed gbs 8 repeats the run's own 60 iterations
    seconds = float(modelled.modelled[1].run.steps[0]["iteration_s"])
    assert one.fixed_s[8] == pytest.approx(60 * seconds)
    # four times as noisy: sum over iterations of 8/(8 + g) * (8 + 4 g)/8
    expected = sum((8 + 4 * (4 + i)) / (8 + 4 + i) for i in range(60))
    assert modelled.modelled[2].fixed_s[8] == pytest.approx(expected * seconds)


def test_more_noise_favours_larger_batches_and_cona_follows(modelled: Sensitivity) -> None:
    best = [one.best_gbs for one in modelled.modelled]
    assert best == sorted(best)
    assert best[-1] == 32
    over_8 = [one.speedup(8) or 0.0 for one in modelled.modelled]
    assert over_8[-1] > max(over_8[0], 1.1)
    assert modelled.modelled[-1].num_switches >= 1
    for one in modelled.modelled:
        assert one.speedup() == min(one.speedup(gbs) or 0.0 for gbs in one.fixed_s)


def test_modelled_and_believed_are_told_apart(modelled: Sensitivity) -> None:
    records = sensitivity_records([modelled])
    assert {r["question"] for r in records} == {"modelled"}
    assert len(records) == len(FACTORS) * 4  # gbs 8, 16, 32 and the best of them
    page = sensitivity_page("quick", [one.run for one in modelled.modelled][:1], [modelled])
    assert "Nothing is trained" in page and "cona's switches" in page


def test_the_figure_has_two_rows_and_needs_one_of_them(
    modelled: Sensitivity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figure_sensitivity, "sensitivities", lambda _: [modelled])
    figure = figure_sensitivity.draw([modelled.modelled[0].run])
    assert figure is not None
    upper, lower = figure.axes
    assert (len(upper.lines), len(lower.lines)) == (1, 1 + 4)
    monkeypatch.undo()
    fall(tmp_path, "cona", 40.0)
    assert figure_sensitivity.draw(load_runs(tmp_path, "quick")) is None


# --- many policies --------------------------------------------------------------------------------

RIVALS = ("copus", "cbs-pessimistic", "cbs-optimistic", "pollux", "norm-test", "cona-paper")
OTHERS = {"seesaw": "schedule", "rampup": "schedule", "merrill": "bound", "greedy-oracle": "bound"}


def test_many_policies_get_a_row_for_each_family_with_cona_in_all(tmp_path: Path) -> None:
    kinds = dict.fromkeys((*RIVALS, "cona"), "online") | OTHERS
    kinds |= {f"fixed-best-gbs{2**i}": "offline" for i in range(3, 9)}
    lines = [eval_line(8 * i, 10.0 * i, 100.0) for i in range(3)]
    for policy, kind in kinds.items():
        write_run(tmp_path, lines, policy=policy, kind=kind)
    runs = load_runs(tmp_path, "quick")
    rows = families(runs)
    assert len(kinds) > MOST_LINES
    assert [len(row) for row in rows.values()] == [7, 7, 5]
    assert all(row[0].policy == "cona" for row in rows.values())
    assert {run.policy for row in rows.values() for run in row} == set(kinds)
    assert list(families(runs[:3])) == [""]


def test_the_named_rivals_differ_in_colour_and_in_line() -> None:
    styles = [line_style(p) for p in ("cona", *RIVALS, *OTHERS)]
    assert len({s.color for s in styles}) == len(styles)
    assert len({(str(s.dash), s.marker) for s in styles}) == len(styles)
    white = [sum(to_rgb(s.color)) for s in styles]
    assert max(white) < 2.4  # none too pale for paper


def test_a_profile_of_one_policy_is_not_drawn(tmp_path: Path) -> None:
    fall(tmp_path, "cona", 40.0)
    assert figure_profile.draw(load_runs(tmp_path, "quick")) is None
    fall(tmp_path, "fixed-best-gbs8", 50.0)
    figure = figure_profile.draw(load_runs(tmp_path, "quick"))
    assert figure is not None and len(figure.axes[0].lines) == 2
