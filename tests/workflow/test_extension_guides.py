"""Every block of the extension guides runs, in order, as a reader copies it into a checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from snakemake_runs import ROOT

GUIDES = ROOT / "docs" / "extend"
CHECKOUT = ("baselines", "cona", "config", "docs", "slurm", "workflow", "Snakefile", "README.md")
"""What the guides use of a checkout; a copy, so that nothing of theirs stays in this one."""
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def follow(guide: str, folder: Path) -> None:
    """Write the files and run the commands of a guide in a fresh checkout."""
    for name in CHECKOUT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    for language, title, text in BLOCK.findall((GUIDES / f"{guide}.md").read_text()):
        if title:
            assert not (folder / title).exists(), "a guide adds files and edits none"
            (folder / title).write_text(text)
        elif language == "bash":
            run(text, folder)


def run(script: str, folder: Path) -> None:
    tools = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder),  # before the checkout that is installed
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def result(folder: Path, run_folder: str) -> dict[str, Any]:
    return json.loads((folder / run_folder / "seed0" / "result.json").read_text())


def test_model(tmp_path: Path) -> None:
    follow("model", tmp_path)
    trained = result(tmp_path, "try/smoke/tiny-gpt/cona")
    assert trained["status"] == "finished"
    assert trained["clock"]["priced_as"] == "gpt3-1.3b"


def test_cluster(tmp_path: Path) -> None:
    follow("cluster", tmp_path)
    trained = result(tmp_path, "try/smoke/gpt3-1.3b-proxy/cona")
    assert trained["clock"]["cluster"] == "mine"
    assert all("dp8" in stage["strategy"] for stage in trained["stages"])
    timed = result(tmp_path, "table/smoke/gpt3-1.3b-proxy/cona")
    assert timed["stages"][0]["time_origin"] == "measured"


def test_policy(tmp_path: Path) -> None:
    follow("policy", tmp_path)
    half_time = result(tmp_path, "try/smoke/gpt3-1.3b-proxy/half-time")
    first, last = half_time["stages"]
    assert first["strategy"].endswith("gbs8")
    assert last["strategy"].endswith("gbs32")
    assert last["train_s"] == pytest.approx(half_time["time_budget_s"] / 2, rel=0.2)
    assert "| half-time |" in (tmp_path / "try/smoke/tables/summary.md").read_text()
    doubler = result(tmp_path, "try/smoke/gpt3-1.3b-proxy/doubler-every200")
    samples = [stage["samples"] for stage in doubler["stages"]]
    assert samples[0] == 0
    assert 200 <= samples[1] < 208


def test_policy_of_an_outside_package(tmp_path: Path) -> None:
    """The package is laid out as pip would install it; nothing is downloaded or built."""
    blocks = BLOCK.findall((GUIDES / "policy.md").read_text())
    (code,) = [text for _, title, text in blocks if title == "baselines/half_time.py"]
    (toml,) = [text for language, _, text in blocks if language == "toml"]
    points = tomllib.loads(toml)["project"]["entry-points"]["cona.policies"]
    (tmp_path / "my_policies").mkdir()
    (tmp_path / "my_policies" / "half_time.py").write_text(code)
    info = tmp_path / "my_policies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[cona.policies]", *lines]))
    run("cona policies | grep '^half-time '", tmp_path)


def test_data(tmp_path: Path) -> None:
    follow("data", tmp_path)
    trained = result(tmp_path, "try/smoke/gpt3-1.3b-proxy/cona")
    assert trained["status"] == "finished"
    facts = json.loads((tmp_path / "try/smoke/gpt3-1.3b-proxy/cona/seed0/run.json").read_text())
    assert facts["tier"]["data"]["corpus"] == "text:my-text.txt"


def test_every_guide_is_followed() -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in GUIDES.glob("*.md")} <= tests
