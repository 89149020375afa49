"""Makes the helpers in this folder importable from every unit test, and gives a small corpus."""

from __future__ import annotations

import random

import pytest


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
