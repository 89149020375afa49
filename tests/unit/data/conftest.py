"""Models and synthetic token streams for the data tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cona.data import PreparedData
from cona.data.tokenizer import Vocabulary
from cona.specs import ModelSpec, TrainingSpec

Family = Literal["gpt", "bert", "llama"]


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ModelSpec]:
    """Return a factory of small models."""

    def make(family: Family = "gpt", *, vocab_size: int = 300, seq_length: int = 8) -> ModelSpec:
        return ModelSpec(
            name=f"tiny-{family}",
            description="for tests",
            family=family,
            num_layers=1,
            hidden_size=8,
            num_heads=2,
            num_kv_heads=2,
            ffn_size=8,
            vocab_size=vocab_size,
            seq_length=seq_length,
            training=TrainingSpec(base_lr=1e-3, min_lr=1e-4, decay_tokens=1000),
            source="none",
        )

    return make


@pytest.fixture(scope="session")
def make_stream() -> Callable[..., PreparedData]:
    """Return a factory of prepared data whose every token tells where it lies in its split."""

    def make(num_tokens: int, *, seq_length: int = 4, is_causal: bool = True) -> PreparedData:
        size = num_tokens + 5
        stream = np.arange(5, size, dtype=np.uint16)
        return PreparedData(
            content_hash="0" * 16,
            vocabulary=Vocabulary(
                vocab_size=size,
                end_id=3,
                mask_id=None if is_causal else 4,
                special_ids=(0, 1, 2, 3, 4),
            ),
            tokens={"train": stream, "valid": stream, "probe": stream},
            token_bytes=np.arange(size) % 7 if is_causal else None,
            seq_length=seq_length,
            is_causal=is_causal,
        )

    return make


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the cache at an empty folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CONA_CACHE_DIR", str(folder))
    return folder
