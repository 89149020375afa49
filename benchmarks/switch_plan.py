"""What ``switch_cost.py`` and its ranks agree on; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from cona.config import load, override
from cona.specs import ModelSpec
from cona.strategy import Layout

NUM_RANKS = 4

TRANSITIONS = (
    (Layout(dp=2, tp=2, pp=1), Layout(dp=4, tp=1, pp=1)),
    (Layout(dp=4, tp=1, pp=1), Layout(dp=1, tp=1, pp=4)),
    (Layout(dp=1, tp=1, pp=4), Layout(dp=1, tp=2, pp=2)),
)

NUM_BEFORE, NUM_AFTER = 2, 2
"""Iterations before and after a switch; the second one after it depends on the moments."""

LR = 1e-5

SIZES = {
    "full": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 16384},
    "small": {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "vocab_size": 1024},
}
"""GPT of 98 million and 0.9 million parameters."""


def spec_of(size: str) -> ModelSpec:
    """Return the model of a size; sequences are short, since only the state matters."""
    shape = SIZES[size]
    changes = {
        **shape,
        "name": f"switch-{size}",
        "num_kv_heads": shape["num_heads"],
        "ffn_size": 4 * shape["hidden_size"],
        "seq_length": 16,
        "dropout": 0.0,
    }
    return override(load(ModelSpec, "gpt3-1.3b-proxy"), changes)


@dataclass(kw_only=True)
class Measured:
    """What one method cost on one transition."""

    method: str
    """live, dcp, torch_dist or universal."""
    old: str
    """Layout before."""
    new: str
    """Layout after."""
    seconds: float
    """Wall seconds on the slowest rank."""
    moved_bytes: int
    """Bytes sent between ranks, or written to and read from files."""
    needed_bytes: int | None = None
    """Bytes that ranks lacked (live)."""
    extra_memory: float | None = None
    """Growth of the memory's peak on the worst rank, over what it holds afterwards (weights,
    moments, gradient) plus one chunk (live)."""
    error: float = float("nan")
    """Largest relative difference of the losses after it from a run that never switched."""
