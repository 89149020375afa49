"""An engine's full state in one file: written whole or not at all, read back only if intact.

Layout: one header line, ``CONA-STATE 1 <sha256 of the rest>``, then what ``torch.save`` writes.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cona.engine.flat import FlatState
from cona.engine.unpickling import load_plain
from cona.errors import DamageError, RunError
from cona.storage import write_whole

MAGIC = b"CONA-STATE 1 "


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """A copy of everything that training changes."""

    flat: FlatState
    """Weights, moments and the number of updates."""
    rng: Tensor
    """State of the engine's random generator (dropout), bytes."""


def write_state(path: Path, fingerprint: str, state: EngineState) -> None:
    """Write a state to a file, whole or not at all.

    Args:
        path: the file.
        fingerprint: identifies the model that the state belongs to.
        state: what to write.

    Raises:
        StorageError: it cannot be written; what stood there still does.
    """
    body = io.BytesIO()
    content = {
        "fingerprint": fingerprint,
        "weights": state.flat.weights,
        "moments": list(state.flat.moments),
        "num_updates": state.flat.num_updates,
        "rng": state.rng,
    }
    torch.save(content, body)
    digest = hashlib.sha256(body.getbuffer()).hexdigest().encode()
    write_whole(path, MAGIC + digest + b"\n", body.getbuffer())


def read_state(path: Path, fingerprint: str) -> EngineState:
    """Read a state that ``write_state`` wrote.

    Args:
        path: the file.
        fingerprint: identifies the model that will continue.

    Raises:
        DamageError: the file is missing or damaged.
        RunError: it cannot be read, or belongs to another model.
    """
    content = load_plain(io.BytesIO(_intact_body(path)), path)
    if (found := content["fingerprint"]) != fingerprint:
        raise RunError(
            f"{path}: holds a state of model '{found}', but model '{fingerprint}' is to continue; "
            "delete it to start anew"
        )
    first, second = content["moments"]
    flat = FlatState(
        weights=content["weights"], moments=(first, second), num_updates=content["num_updates"]
    )
    return EngineState(flat=flat, rng=content["rng"])


def _intact_body(path: Path) -> bytes:
    try:
        header, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        kind = DamageError if isinstance(error, FileNotFoundError) else RunError
        raise kind(f"{path}: {error.strerror}") from error
    if header != MAGIC + hashlib.sha256(body).hexdigest().encode():
        raise DamageError(f"{path}: damaged, or no engine state: delete it to use an earlier one")
    return body
