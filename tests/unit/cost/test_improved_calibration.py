"""Calibration: it finds what made the rows, leaves whole shapes out, and is kept as YAML."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cona.cost.calibration import FREE, START, _get, fit, fit_constants, held_out, usable
from cona.cost.constants import Calibration, Constants, load, shipped
from cona.cost.folds import folds, shapes
from cona.cost.iteration_time import parts_s
from cona.cost.row_inputs import row_inputs
from cona.cost.rows import normalise
from cona.cost.stages import Stages
from cona.errors import ConfigError

TRUTH = START.model_copy(
    update={"gemm_efficiency": 0.6, "elementwise_bytes": 150.0, "intra_rate": 0.7}
)


def measured(constants: Constants = TRUTH) -> pd.DataFrame:
    """Rows of nine shapes on one node, whose times the constants make."""
    cases = itertools.product((1024, 2048, 4096), (12, 24, 48), (1, 2), (1, 4, 8), (2, 8))
    raw = pd.DataFrame(
        [
            {
                "group": f"h{h}",
                "gpu_type": "A100-80GB",
                "layers": n,
                "hidden": h,
                "heads": 16,
                "seq": 2048,
                "tp": tp,
                "dp": 8 // tp,
                "pp": 1,
                "mbs": mbs,
                "gbs": 8 // tp * mbs * m,
                "recompute": "flash",
            }
            for h, n, tp, mbs, m in cases
        ]
    )
    rows = normalise(raw, where="made")
    inputs = row_inputs(rows)
    seconds = sum(parts_s(inputs, constants, Stages.of(inputs)).values())
    return rows.assign(iteration_s=seconds)


ROWS = measured()


def test_the_fit_finds_what_made_the_rows() -> None:
    found = fit_constants(ROWS)
    assert found.gemm_efficiency == pytest.approx(0.6, rel=0.02)
    assert found.elementwise_bytes == pytest.approx(150, rel=0.15)  # pulled towards 100
    assert found.intra_rate == pytest.approx(0.7, rel=0.1)
    assert np.median(np.abs(held_out(ROWS, 3))) < 0.01


def test_outliers_do_not_move_the_fit() -> None:
    is_wild = np.random.default_rng(0).random(len(ROWS)) < 0.08
    wild = ROWS.assign(iteration_s=ROWS["iteration_s"] * np.where(is_wild, 4, 1))
    assert is_wild.sum() > 5
    assert fit_constants(wild).gemm_efficiency == pytest.approx(0.6, rel=0.04)


def test_what_rows_do_not_show_stays_where_it_was() -> None:
    found = fit_constants(ROWS)
    assert found.launch_s["debug"] == pytest.approx(START.launch_s["debug"], rel=1e-6)
    assert found.inter_rate == pytest.approx(START.inter_rate, rel=1e-6)
    assert found.optimizer_bytes == START.optimizer_bytes


def test_fitted_calibration_names_its_quality_and_survives_a_file(tmp_path: Path) -> None:
    calibration = fit(ROWS, "a100-80g", num_folds=3, source="made in this test")
    path = tmp_path / "mine.yaml"
    calibration.save(path)
    assert load(str(path)) == calibration
    assert calibration.calibrated
    assert [r.group for r in calibration.residuals] == ["h1024", "h2048", "h4096"]
    assert [r.num_rows for r in calibration.residuals] == [36] * 3
    assert all(r.median < 0.03 and r.fit_median <= r.p90 for r in calibration.residuals)


def test_one_rows_time_does_not_reach_its_own_prediction() -> None:
    """A shape whose times are wrong is predicted as if they were right."""
    is_wrong = (shapes(ROWS) == "4096x48").to_numpy()
    wrong = ROWS.assign(iteration_s=ROWS["iteration_s"] * np.where(is_wrong, 2, 1))
    assert held_out(wrong, 9)[is_wrong] == pytest.approx(-0.5, abs=0.02)


@settings(max_examples=25)
@given(st.integers(2, 12))
def test_folds_never_split_a_shape(num_folds: int) -> None:
    found = folds(ROWS, num_folds)
    assert set(found.tolist()) <= set(range(num_folds))
    by_shape = pd.Series(found).groupby(shapes(ROWS)).nunique()
    assert (by_shape == 1).all()
    assert len(set(found.tolist())) == min(num_folds, 9)


def test_a_sweep_is_cut_into_cells() -> None:
    sweep = pd.concat([ROWS[ROWS["group"] == "h1024"]] * 3, ignore_index=True)
    assert set(shapes(sweep)) == {f"tp{t}-mbs{b}" for t in (1, 2) for b in (1, 4, 8)}
    assert set(shapes(sweep[:99])) == {"1024x12", "1024x24", "1024x48"}


def test_fp8_and_other_gpus_are_left_out() -> None:
    mixed = ROWS.copy()
    mixed.loc[:9, "precision"] = "fp8"
    mixed.loc[10:19, "gpu"] = "h100-80g"
    mixed.loc[20:29, "gpu"] = "a100-40g"  # the same chip
    assert len(usable(mixed, "a100-80g")) == len(ROWS) - 20
    assert len(usable(mixed, "h100-80g")) == 10


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 rows of GPU 'b200' have a time.*needs 5.*a100-80g"):
        fit(ROWS, "b200")
    untimed = ROWS.assign(iteration_s=np.nan)
    with pytest.raises(ConfigError, match="0 rows of GPU 'a100-80g'"):
        fit(untimed, "a100-80g")


# --- what is shipped ------------------------------------------------------------------------------


def test_shipped_calibrations_say_what_they_are() -> None:
    assert shipped() == ["a100-80g", "b200", "cpu", "h100-80g", "h200", "v100-32g"]
    for name in shipped():
        found = load(name)
        assert found.gpu == name
        assert found.source
        assert found.date
        assert set(found.constants.launch_s) == {"debug", "megatron-deepspeed", "tuned"}
        assert found.calibrated == (name in ("a100-80g", "h100-80g")) == bool(found.residuals)


def test_the_small_a100_shares_its_chips_constants() -> None:
    assert load("a100-40g") == load("a100-80g")


def test_no_more_constants_are_fitted_than_a_handful() -> None:
    assert all(len(load(name).fitted) <= 14 for name in shipped())


def test_shipped_calibrations_name_exactly_the_constants_that_left_the_start() -> None:
    for name in ("a100-80g", "h100-80g"):
        moved = tuple(c for c in FREE if _get(load(name).constants, c) != _get(START, c))
        assert load(name).fitted == moved


def test_older_gpus_take_the_constants_of_a100() -> None:
    assert load("v100-16g").constants == load("a100-80g").constants


@pytest.mark.parametrize("value", [0, 1.2, -0.5])
def test_an_efficiency_is_a_share(value: float) -> None:
    with pytest.raises(ValidationError, match="gemm_efficiency"):
        Constants(**START.model_dump() | {"gemm_efficiency": value})


def test_a_broken_file_names_key_and_rule(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    calibration = Calibration(
        gpu="a100-80g", calibrated=False, source="test", date="2026-11-30", constants=START
    )
    calibration.save(path)
    text = path.read_text(encoding="utf-8").replace("gemm_edge: 300", "gemm_edge: -1")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"constants\.gemm_edge = -1"):
        load(str(path))


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no calibration for GPU 'h100-80'.*h100-80g"):
        load("h100-80")


def test_saving_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load("h200").save(tmp_path / "missing" / "x.yaml")


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_an_uncalibrated_type_says_where_its_fused_attention_comes_from(gpu: str) -> None:
    """It differs from the H100's fitted one, which a comparison of the two must know."""
    taken_over, h100 = load(gpu), load("h100-80g")
    assert not taken_over.calibrated
    assert taken_over.constants.flash_efficiency == 0.35
    assert "35 % of an H100's dense peak" in taken_over.source
    assert "arXiv 2407.08608" in taken_over.source
    fitted = f"{h100.constants.flash_efficiency:.2f}"
    assert f"the fitted {fitted} of h100-80g.yaml" in taken_over.source


@pytest.mark.parametrize("gpu", ["a100-80g", "h100-80g"])
def test_the_page_states_the_errors_of_the_shipped_calibrations(gpu: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cost-model.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    stated = {tuple(row[1:]) for row in rows if row[:1] == [gpu]}
    assert stated == {
        (r.group, str(r.num_rows), f"{100 * r.median:.1f} %", f"{100 * r.p90:.1f} %")
        for r in load(gpu).residuals
    }
