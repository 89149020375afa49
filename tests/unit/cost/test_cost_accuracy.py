"""The benchmark of the cost model's accuracy: its goals, its tables, and what it refuses."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from cona.cost.constants import load
from cona.cost.predictions import predict
from cona.cost.row_inputs import row_inputs
from cona.cost.rows import normalise

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import cost_accuracy
import cost_goals


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cost_accuracy.main, [str(word) for word in arguments])


def made(gpu: str, precision: str, group: str) -> pd.DataFrame:
    """Published rows of four shapes whose times the shipped constants make."""
    raw = pd.DataFrame(
        [
            {"group": group, "gpu_type": gpu, "precision": precision, "gpus": 8, "layers": 24}
            | {"hidden": h, "heads": 16, "seq": 1024, "tp": tp, "dp": 8 // tp, "pp": 1}
            | {"mbs": mbs, "gbs": 32}
            for h, tp, mbs in product((1024, 2048, 3072, 4096), (1, 2), (2, 4))
        ]
    )
    seconds = predict(row_inputs(normalise(raw, where="x")), load("h100-80g")).time_s
    return raw.assign(iteration_seconds=seconds)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [made("H100-80GB", "bf16", "A_made"), made("H100-80GB", "fp8", "B_fp8")]
    pd.concat(rows).to_csv(tmp_path / "rows.csv", index=False)
    answers = rows[0].drop(columns=["gpu_type", "group"]).assign(system="a100_80g_8gpu_node")
    answers.to_csv(tmp_path / "answers.csv", index=False)
    return tmp_path


def test_a_folder_is_measured_with_goals_fp8_apart_and_other_folds(folder: Path) -> None:
    done = invoke(folder, "--folds", 2)
    assert done.exit_code == 0, done.output
    assert "answers.csv: skipped: a model's answers" in done.stderr
    assert "START in cona/cost/calibration.py, was chosen" in done.stdout.splitlines()[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.split("\n")]
    found = {(line[0], line[1]): line for line in lines if len(line) > 3}
    assert found["published, all", "median"][-1] == "pass"
    assert found["vTrain single node", "median"][-1] == "no rows"
    assert found["B_fp8", "improved"][2] == "16/16"
    assert found["published, all", "improved"][2] == "16/16"  # fp8 is not among them
    assert sum(line[:1] == ["published, all"] and len(line) == 6 for line in lines) >= 2
    assert "Worst groups of improved" in done.stdout


def test_goals_are_judged() -> None:
    rows = pd.DataFrame(
        {"group": "A", "seq_length": 2048, "num_gpus": 8, "gpus_per_node": 8}, index=range(10)
    )
    verdicts = [
        [row[-1] for row in cost_goals.goals(rows, np.full(10, error))] for error in (0.05, 0.065)
    ]
    nothing = ["no rows", "no rows"]
    assert verdicts[0] == [*nothing, "pass", "pass", "pass", "no rows"]
    assert verdicts[1] == [*nothing, "FAIL", "pass", "pass", "no rows"]


def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    failed = invoke()
    assert failed.exit_code == 2
    assert "name the CSVs of measured iteration times" in failed.stderr
    failed = invoke(tmp_path)
    assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1)
    assert "no CSV in it" in failed.stderr
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    failed = invoke(tmp_path)
    assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1)
    assert "column 'layers' is missing" in failed.stderr
