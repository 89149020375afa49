"""Small models and batches that the engine's tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from cona.config import override
from cona.engine.base import Batch
from cona.specs import ModelSpec, TrainingSpec

FAMILIES = ("gpt", "bert", "llama")


def tiny(family: str, **changes: Any) -> ModelSpec:
    """Return a model of a few thousand parameters; its vocabulary is padded from 100 to 128."""
    spec = ModelSpec.model_validate(
        {
            "name": f"tiny-{family}",
            "description": "for tests",
            "family": family,
            "num_layers": 2,
            "hidden_size": 32,
            "num_heads": 4,
            "num_kv_heads": 2 if family == "llama" else 4,
            "ffn_size": 48,
            "vocab_size": 100,
            "seq_length": 16,
            "tp_max": 1,
            "rope_theta": 500.0,
            "training": TrainingSpec(base_lr=1e-2, min_lr=0.0, decay_tokens=1000, weight_decay=0.1),
            "source": "none",
        }
    )
    return override(spec, changes)


def random_batch(spec: ModelSpec, samples: int, seed: int = 0) -> Batch:
    """Return random tokens; every target counts, or about 30 % of them for BERT."""
    rng = np.random.default_rng(seed)
    shape = (samples, spec.seq_length)
    mask = np.ones(shape, dtype=bool) if spec.is_causal else rng.random(shape) < 0.3
    return Batch(
        tokens=rng.integers(0, spec.vocab_size, shape),
        labels=rng.integers(0, spec.vocab_size, shape),
        loss_mask=mask,
    )
