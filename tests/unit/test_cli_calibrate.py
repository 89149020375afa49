"""`cona calibrate`: from measured rows to a file that `cona predict` uses."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from cona import cli
from cona.cost.calibration import START
from cona.cost.constants import Calibration, Constants
from cona.cost.predictions import predict
from cona.cost.row_inputs import row_inputs
from cona.cost.rows import normalise

TRUTH = START.model_copy(update={"gemm_efficiency": 0.6, "intra_rate": 0.8})
"""What an imagined GPU reaches: not where the fit starts."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def measured(constants: Constants, **columns: object) -> pd.DataFrame:
    """Rows of four shapes whose times a model with these constants gives."""
    grid = product((1024, 2048, 3072, 4096), (12, 24), ((1, 8), (2, 4), (8, 1)), (1, 4))
    facts = [
        {"hidden": h, "heads": 16, "layers": n, "seq": 1024, "tp": tp, "dp": dp, "pp": 1}
        | {"gpus": 8, "mbs": mbs, "gbs": 4 * dp * mbs}
        for h, n, (tp, dp), mbs in grid
    ]
    raw = pd.DataFrame(facts).assign(**columns)
    inputs = row_inputs(normalise(raw, where="x"))
    calibration = Calibration(
        gpu="a100-80g", calibrated=True, source="x", date="2026-11-30", constants=constants
    )
    return raw.assign(iteration_ms=1000 * predict(inputs, calibration).time_s)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("calibrate")
    measured(TRUTH).to_csv(folder / "rows.csv", index=False)
    out = folder / "my.yaml"
    arguments = ("--gpu", "A100_80GB", "--folds", "2", "--source", "a test")
    return out, invoke("calibrate", str(folder / "rows.csv"), *arguments, "--out", str(out))


def test_the_file_says_what_it_is_and_how_good(calibrated: tuple[Path, Result]) -> None:
    out, done = calibrated
    assert done.exit_code == 0, done.output
    content = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert (content["gpu"], content["calibrated"], content["source"]) == (
        "a100-80g",
        True,
        "a test",
    )
    assert [r["group"] for r in content["residuals"]] == ["vtrain-single-node"]
    assert content["residuals"][0]["num_rows"] == 48
    line, written = done.stdout.splitlines()
    assert "vtrain-single-node    48 rows  median" in line
    assert written == str(out)


def test_the_fit_finds_the_gpu_and_predict_uses_it(calibrated: tuple[Path, Result]) -> None:
    out, _ = calibrated
    content = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert content["residuals"][0]["fit_median"] < 0.02
    target = out.with_name("predictions.csv")
    rows = str(out.with_name("rows.csv"))
    done = invoke(
        "predict", rows, "--preset", "improved", "--calibration", str(out), "--out", str(target)
    )
    assert done.exit_code == 0, done.output
    found = pd.read_csv(target)
    errors = (found["predicted_s"] * 1000 / found["iteration_ms"] - 1).abs()
    assert errors.median() < 0.02
    assert found["predicted_s"].notna().all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "h100-80g"], "0 rows of GPU 'h100-80g' have a time"),
        (["--gpu", "p100"], "unknown GPU 'p100': valid:"),
        (["--out", "x.csv"], "--out x.csv: the suffix must be .yaml"),
        (["--out", "no/folder/x.yaml"], "no/folder/x.yaml: No such file"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    path = tmp_path / "rows.csv"
    measured(TRUTH).to_csv(path, index=False)
    options = {"--gpu": "a100-80g", "--out": str(tmp_path / "x.yaml")}
    options |= {arguments[0]: arguments[1]}
    failed = invoke("calibrate", str(path), *(word for pair in options.items() for word in pair))
    assert failed.exit_code == 2
    assert sentence in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_rows_without_times_and_of_other_gpus_are_refused(
    tmp_path: Path, calibrated: tuple[Path, Result]
) -> None:
    path = tmp_path / "rows.csv"
    measured(TRUTH).drop(columns="iteration_ms").to_csv(path, index=False)
    failed = invoke("calibrate", str(path), "--gpu", "a100-80g", "--out", str(tmp_path / "x.yaml"))
    assert "0 rows of GPU 'a100-80g' have a time" in failed.stderr
    measured(TRUTH, gpu_type="H100-80GB").to_csv(path, index=False)
    options = ("--calibration", str(calibrated[0]), "--out", str(tmp_path / "out.csv"))
    failed = invoke("predict", str(path), "--preset", "improved", *options)
    assert "the calibration is for GPU 'a100-80g'; the rows are of h100-80g" in failed.stderr


def calibrate(folder: Path, *frames: pd.DataFrame) -> tuple[dict, Result]:
    paths = [folder / f"{i}.csv" for i in range(len(frames))]
    for path, rows in zip(paths, frames, strict=True):
        rows.to_csv(path, index=False)
    out = folder / "x.yaml"
    done = invoke("calibrate", *map(str, paths), "--gpu", "a100-80g", "--out", str(out))
    assert done.exit_code == 0, done.output
    return yaml.safe_load(out.read_text(encoding="utf-8")), done


def test_rows_of_one_shape_are_left_out_by_tp_and_mbs(tmp_path: Path) -> None:
    rows = measured(TRUTH)
    content, _ = calibrate(tmp_path, rows[(rows["hidden"] == 1024) & (rows["layers"] == 12)])
    assert content["residuals"][0]["num_rows"] == 6


def test_rows_of_one_cell_give_a_fit_without_errors_on_rows_left_out(tmp_path: Path) -> None:
    rows = measured(TRUTH).head(1)
    content, done = calibrate(tmp_path, pd.concat([rows] * 6))
    assert content["residuals"] == []
    assert done.stdout.startswith("no errors on rows left out: all rows are of one shape")


def test_a_models_answers_are_skipped_aloud(tmp_path: Path) -> None:
    answers = measured(TRUTH).assign(system="a100_80g:all_nvlink", seconds=100.0)
    rows = measured(TRUTH)[::4]
    content, done = calibrate(tmp_path, rows, answers.drop(columns="iteration_ms"))
    assert "1.csv: skipped: a model's answers" in done.stderr
    assert [r["num_rows"] for r in content["residuals"]] == [len(rows)]


def test_only_constants_that_rows_moved_are_named_as_fitted(
    calibrated: tuple[Path, Result],
) -> None:
    content = yaml.safe_load(calibrated[0].read_text(encoding="utf-8"))
    assert "gemm_efficiency" in content["fitted"]
    assert "launch_s.debug" not in content["fitted"]
    assert "inter_rate" not in content["fitted"]


def test_json_is_what_the_file_holds(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "my.yaml"
    pd.concat([measured(TRUTH).head(1)] * 6).to_csv(rows, index=False)
    done = invoke("calibrate", str(rows), "--gpu", "a100-80g", "--out", str(out), "--json")
    content = json.loads(done.stdout)
    assert content.pop("out") == str(out)
    assert content == yaml.safe_load(out.read_text(encoding="utf-8"))
