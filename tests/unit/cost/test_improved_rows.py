"""Inputs of the improved model from rows: every column's word reaches its number."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from cost_cases import cluster_spec

from cona.cost.constants import PROFILES
from cona.cost.row_inputs import NODES, row_inputs
from cona.cost.rows import normalise
from cona.errors import ConfigError

FACTS: dict[str, Any] = {
    "gpu_type": "H100-80GB",
    "layers": 24,
    "hidden": 2048,
    "heads": 16,
    "seq": 1024,
    "tp": 2,
    "dp": 4,
    "pp": 1,
    "mbs": 2,
    "gbs": 16,
    "vocab": 50257,
    "recompute": "none",
    "dist": "ddp",
    "precision": "bf16",
}


def column(name: str, *changes: dict[str, Any]) -> list[float]:
    """A column of the inputs of rows that differ from FACTS."""
    raw = pd.DataFrame([FACTS | change for change in changes])
    inputs = row_inputs(normalise(raw, where="made"))
    return [float(value) for value in getattr(inputs, name)]


def test_vocabulary_is_padded_for_the_rows_own_tp() -> None:
    assert column("vocab", {"tp": 1}, {"tp": 2}, {"tp": 8}) == [50304, 50432, 51200]


@pytest.mark.parametrize(
    ("word", "attention", "rest"),
    [
        ("none", 0, 0),
        ("flash", 0, 0),
        ("selective", 1, 0),
        ("selective+sp", 1, 0),
        ("selective_op", 0.5, 0.5),
        ("selective_layer", 0.5, 0.5),
        ("full", 1, 1),
    ],
)
def test_recomputed_shares(word: str, attention: float, rest: float) -> None:
    assert column("recompute_attention", {"recompute": word}) == [attention]
    assert column("recompute_rest", {"recompute": word}) == [rest]


def test_what_the_way_of_data_parallelism_says() -> None:
    ways = [{"dist": d} for d in ("ddp", "ddp_overlap", "zero1", "FSDP_full_shard", "fsdp2")]
    assert column("zero_stage", *ways) == [0, 0, 1, 3, 3]
    assert column("overlap", *ways) == [0, 1, 0, 1, 1]
    assert column("flash", *ways) == [0, 0, 0, 1, 1]
    assert column("logit_bytes", *ways) == [10, 10, 10, 4, 4]
    assert column("has_dropout", *ways) == [1, 1, 1, 0, 0]


def test_families() -> None:
    kinds = [{"model": "GPT"}, {"model": "BERT-Large"}, {"model": "Llama", "mlp": "swiglu"}]
    kinds = [{"mlp": "gelu"} | kind for kind in kinds]
    assert column("is_causal", *kinds) == [1, 0, 1]
    assert column("is_gated", *kinds) == [0, 0, 1]


def test_profiles_are_told_by_notes() -> None:
    notes = [{"notes": "deterministic mode"}, {"notes": "grad accum 1"}]
    debug, tuned = PROFILES.index("debug"), PROFILES.index("tuned")
    assert column("profile", *notes) == [debug, tuned]


def test_gpus_bring_their_data_sheets() -> None:
    gpus = [{"gpu_type": g} for g in ("A100-80GB", "A100-40GB", "H200-141GB", "H100-96GB-500W")]
    assert column("hbm_bytes_per_s", *gpus) == [2039e9, 1555e9, 4800e9, 3350e9]
    assert column("memory_bytes", *gpus) == [80e9, 40e9, 141e9, 96e9]


def test_fp8_speeds_up_only_gpus_that_have_it() -> None:
    pairs = [{"gpu_type": g, "precision": "fp8"} for g in ("A100-80GB", "H100-80GB")]
    assert column("linear_speedup", *pairs) == pytest.approx([1, 2], rel=1e-3)


def test_links_are_the_usual_ones_or_those_given() -> None:
    rows = normalise(pd.DataFrame([FACTS]), where="made")
    assert row_inputs(rows).inter_bytes_per_s.tolist() == [45e9]  # 400 Gb/s at 90 %
    given = row_inputs(rows, cluster_spec())
    assert given.inter_bytes_per_s.tolist() == [22.5e9]
    assert given.matrix_flop_per_s.tolist() == [989.4e12]  # of the row's GPU all the same


def test_an_unknown_gpu_is_refused_with_a_choice() -> None:
    with pytest.raises(ConfigError, match=f"unknown GPU 'P100': .*{next(iter(NODES))}"):
        column("dp", {"gpu_type": "P100"})
