"""Sharded checkpoints of a small model on two ranks, to be hit."""

from __future__ import annotations

from pathlib import Path

from engine_fixtures import tiny
from file_faults import KINDS
from sharded_values import filled

from cona.engine.sharded_checkpoint import load_checkpoint, save_checkpoint
from cona.errors import DamageError, StorageError
from cona.strategy import Layout

VECTORS = ("weights", "exp_avg", "exp_avg_sq")


def save(rank: int, path: Path) -> str | None:
    """Write a checkpoint; return what a user is told if the disk refuses."""
    flat = filled(tiny("gpt"), Layout(dp=1, tp=2, pp=1), rank)
    vectors = dict(zip(VECTORS, flat.buffers, strict=True))
    try:
        save_checkpoint(path, "tiny", flat.starts, vectors, {"num_updates": 7})
    except StorageError as error:
        return str(error)
    return None


def load(rank: int, path: Path) -> bool:
    """Return whether a checkpoint is there, whole and right."""
    flat = filled(tiny("gpt"), Layout(dp=1, tp=2, pp=1), rank)
    vectors = {
        name: buffer.clone().zero_() for name, buffer in zip(VECTORS, flat.buffers, strict=True)
    }
    try:
        found = load_checkpoint(path, "tiny", flat.starts, vectors)
    except DamageError:
        return False
    same = all(mine.equal(b) for mine, b in zip(vectors.values(), flat.buffers, strict=True))
    return same and found["num_updates"] == 7


def save_hit(rank: int, path: Path, hit_rank: int, kind: str, at: int) -> tuple[str | None, int]:
    """Write a checkpoint while the disk of one rank fails; return what is said, and operations."""
    faults = KINDS[kind if rank == hit_rank else "none"](path.parent, at)
    faults.install()
    return save(rank, path), faults.count
