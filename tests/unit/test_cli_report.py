"""`cona tables`, `claims` and `planners` print the table that matters most, then their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_runs import write_tier

from cona import cli
from cona.cli import report_text

TIMES = [
    {"policy": "cona", "seed": seed, "headline": headline, "ttp_train_s": seconds}
    for headline, found in (("yes", (10.0, 30.0, None)), ("no", (1.0, 2.0, 3.0)))
    for seed, seconds in enumerate(found)
]
OF_MODEL = {"model": "m", "metric": "ppl", "target": 31.6, "kind": "online", "clock": "modelled"}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def test_times_by_hand() -> None:
    """The median of 10, 30 and never is 30; two of three seeds reached the headline target."""
    over = {"model": "m", "method": "cona", "headline": "yes", "speedup_median": 1.4}
    speedups = [
        {**over, "baseline": "fixed-best-gbs8", "state": "ratio", "speedup_median": 9.0},
        {**over, "baseline": "best fixed in hindsight", "state": "at_least"},
        {**over, "baseline": "best fixed in hindsight", "headline": "no", "speedup_median": 7.0},
    ]
    (row,) = report_text.ttp_rows([row | OF_MODEL for row in TIMES], speedups)
    assert (row["ttp_s"], row["n_reached"], row["n"]) == (30.0, 2, 3)
    assert (row["speedup"], row["speedup_is_at_least"]) == (1.4, True)
    text = report_text.ttp([row], ["m", "other"])
    assert "m: modelled seconds to ppl 31.6" in text
    assert "cona    online     30  2/3      ≥ 1.40" in text
    assert "other: no target was reached" in text


def test_a_claim_without_a_verdict_says_why() -> None:
    row = {
        **{"claim": "C1", "statement": "Slower", "model": "m", "paper": "1.8×", "brief": None},
        **{"target": None, "n_seeds": 1, "n_reached": 0, "verdict": "not tested"},
        "why_not_tested": "no run",
    }
    lines = report_text.claims([row, row | {"verdict": "reproduced", "target": 31.6}]).splitlines()
    assert lines[1].split() == ["C1", "m", "1.8×", "-", "-", "-", "not", "tested"]
    assert lines[2].split() == ["C1", "m", "1.8×", "-", "31.6", "0/1", "reproduced"]
    assert lines[-3:] == ["C1  Slower", "", "Not tested: no run."]


def test_planners_by_batch_size() -> None:
    row = {"model": "m", "priced_as": "M", "cluster": "c", "time_source": "t", "planner": "amp"}
    rows = [row | {"gbs": 8, "over_best": 0.5}, row | {"gbs": 16, "over_best": None}]
    lines = report_text.planners(rows).splitlines()
    assert lines[0].startswith("m, priced as M on c: how many % longer")
    assert [line.split() for line in lines[2:4]] == [
        ["planner", "gbs", "8", "gbs", "16"],
        ["amp", "50.0", "-"],
    ]


@pytest.mark.parametrize("command", ["tables", "claims"])
def test_the_table_comes_first_then_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write_tier(tmp_path, models=("gpt3-1.3b-proxy",))
    asked = (command, "--tier", "quick", "--out", str(tmp_path))
    content = json.loads(invoke(*asked, "--json").stdout)
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*asked).stdout
    table, _, files = shown.rpartition("\n\n")
    assert files.split() == content["files"]
    assert all(Path(path).is_file() for path in content["files"])
    assert max(map(len, table.splitlines())) <= 80
    for row in content["rows"]:
        assert row["policy" if command == "tables" else "claim"] in table
