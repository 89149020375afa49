"""One cache of prepared corpora for all tests, beside pytest's own cache."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.cache is not None:
        os.environ.setdefault("CONA_CACHE_DIR", str(config.cache.mkdir("cona-data")))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
