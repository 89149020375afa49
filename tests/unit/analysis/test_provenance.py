"""Provenance of a tier: the seconds of all starts, dirty commits, and the page of all runs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from fake_runs import CONA, FIXED, Simulation, write_run, write_tier
from report_files import MODEL, tier

from cona.analysis import table_provenance
from cona.analysis.load import load_runs


def test_wall_time_is_of_all_starts(tmp_path: Path) -> None:
    path = write_run(tmp_path, Simulation(plan=FIXED[0], budget_s=20.0).run())
    run = load_runs(tmp_path, "quick")[0]
    assert table_provenance.wall_clock_s(run) is None
    events = [("started", "10:00:00"), ("ended early", "10:00:07"), ("resumed", "11:00:00")]
    events += [("resumed", "12:00:00"), ("finished", "12:00:30")]  # the second vanished
    lines = [
        json.dumps({"time": f"2026-01-01T{clock}.000+00:00", "event": what})
        for what, clock in events
    ]
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert table_provenance.wall_clock_s(run) == 37.0
    assert dict(table_provenance.facts(tier(), [run]))["Wall time"].startswith("0.6 minutes")


@pytest.mark.parametrize("commit", ["abc123", "abc123+dirty"])
def test_dirty_is_explained_only_where_a_run_is(tmp_path: Path, commit: str) -> None:
    path = write_run(tmp_path, Simulation(plan=FIXED[0], budget_s=20.0).run())
    (path / "run.json").write_text(json.dumps({"commit": commit}))
    found = dict(table_provenance.facts(tier(), load_runs(tmp_path, "quick")))["Commit"]
    assert found.startswith(commit)
    assert ("differed from the commit" in found) == commit.endswith("+dirty")


def test_every_run_has_a_line_and_all_have_a_page(tmp_path: Path) -> None:
    write_tier(tmp_path, models=(MODEL,), plans=(CONA, FIXED[0]))
    csv, page = table_provenance.write_provenance(tmp_path, tier())
    runs, lines = load_runs(tmp_path, "quick"), pd.read_csv(csv)
    assert list(lines["run_key"]) == [run.result["run_key"] for run in runs]
    text = page.read_text()
    assert f"| Runs        | {len(runs)} finished" in text
    assert "make reproduce TIER=quick" in text
