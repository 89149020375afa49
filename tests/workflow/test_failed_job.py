"""A job that fails says in the terminal what its log says: the sentence, not only a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snakemake_runs import Workflow


def test_the_log_of_a_failed_job_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONA_CACHE_DIR", "/dev/null/cache")
    failed = Workflow(tmp_path)("--cores", "1", "--until", "data", tier="smoke")
    assert failed.returncode == 1
    (log,) = tmp_path.glob("logs/smoke/data-*.log")
    (sentence,) = (line for line in log.read_text().splitlines() if line.startswith("Error: "))
    assert sentence in failed.stdout.splitlines()
    # A line says what is started, without a list of its files.
    assert re.search(r"^Job \d+: data for gpt3-1.3b-proxy$", failed.stdout, re.MULTILINE)
    assert "Traceback" not in failed.stdout
