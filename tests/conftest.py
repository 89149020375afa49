"""Settings of all tests, and one cache of prepared corpora for them, beside pytest's own."""

from __future__ import annotations

import os

import hypothesis
import pytest

# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


def pytest_configure(config: pytest.Config) -> None:
    cache = getattr(config, "cache", None)  # missing under -p no:cacheprovider
    if cache is not None:
        os.environ.setdefault("CONA_CACHE_DIR", str(cache.mkdir("cona-data")))
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print what they print into a pipe, wherever pytest runs."""
    monkeypatch.delenv("COLUMNS", raising=False)
