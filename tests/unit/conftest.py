"""Makes the helpers in this folder importable from every unit test, and gives a small corpus."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from problems import tiny_cluster, tiny_model
from toy_engine import ToyEngine

from cona.setup import Setup


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a corpus of 120 short files of words with a skewed distribution."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = [f"w{i}" for i in range(60)]
    weights = [1 / (i + 1) for i in range(60)]
    for i in range(120):
        (folder / f"{i}.txt").write_text(" ".join(rng.choices(words, weights, k=400)))
    return f"text:{folder}"


@pytest.fixture
def toy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make runs of the tiny model possible, under a toy engine; return where results may go."""
    for folder, spec in (("models", tiny_model()), ("clusters", tiny_cluster())):
        path = tmp_path / "config" / folder / f"{spec.name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    monkeypatch.setenv("CONA_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(Setup, "_engine", lambda self: ToyEngine())
    return tmp_path / "results"
