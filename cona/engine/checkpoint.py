"""An engine's full state in one file: written whole or not at all, read back only if intact.

Layout: one header line, ``CONA-STATE 1 <sha256 of the rest>``, then what ``torch.save`` writes.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cona.engine.flat import FlatState
from cona.errors import RunError

MAGIC = b"CONA-STATE 1 "


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """A copy of everything that training changes."""

    flat: FlatState
    """Weights, moments and the number of updates."""
    rng: Tensor
    """State of the engine's random generator (dropout), bytes."""


def write_state(path: Path, fingerprint: str, state: EngineState) -> None:
    """Write a state to a file, atomically: through a neighbour, flushed to disk and renamed.

    Args:
        path: the file; its folder exists.
        fingerprint: identifies the model that the state belongs to.
        state: what to write.
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
    temporary = path.with_name(f"{path.name}.{platform.node()}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(MAGIC + digest + b"\n")
        file.write(body.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_state(path: Path, fingerprint: str) -> EngineState:
    """Read a state that ``write_state`` wrote.

    Args:
        path: the file.
        fingerprint: identifies the model that will continue.

    Raises:
        RunError: the file is missing, damaged, or belongs to another model.
    """
    content = torch.load(io.BytesIO(_intact_body(path)), map_location="cpu", weights_only=True)
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
        raise RunError(f"{path}: {error.strerror}") from error
    if header != MAGIC + hashlib.sha256(body).hexdigest().encode():
        raise RunError(f"{path}: damaged, or no engine state: delete it to use an earlier one")
    return body
