"""The restart path: a state on disk that any layout and any number of ranks can load.

A checkpoint is a folder: torch.distributed.checkpoint's files (each box once, however many ranks
hold it), the scalars, and a manifest with the SHA-256 of every other file. It is written beside its
place and renamed when it is complete. Nothing is unpickled that could run code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from cona.engine.box_tensor import BoxTensor, PlainReader
from cona.engine.manifest import Manifest, digest, read_manifest, sync
from cona.engine.reshard import FlatShards
from cona.engine.shards import Shard
from cona.errors import DamageError, RunError

SCALARS = "scalars.pt"


def save_checkpoint(
    path: Path,
    fingerprint: str,
    starts: Mapping[Shard, int],
    vectors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
) -> None:
    """Write the state of all ranks to a folder, whole or not at all; all ranks must call it.

    Args:
        path: the folder, on a file system that all ranks share; its parent exists.
        fingerprint: identifies the model that the state belongs to.
        starts: where each of this rank's shards starts in the vectors, in elements.
        vectors: weights and moments by name, each of shape [elements].
        scalars: numbers, texts, small tensors and containers of them; rank 0's are written.

    Raises:
        RunError: the folder cannot be written.
    """
    temporary, rank = path.with_name(f"{path.name}.tmp"), dist.get_rank()

    def prepare() -> None:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()

    def finish() -> None:
        if rank == 0:
            torch.save(dict(scalars), temporary / SCALARS)
            sync(temporary / SCALARS)
            shared = {name: digest(temporary / name) for name in (SCALARS, ".metadata")}
            Manifest(fingerprint=fingerprint, files=shards | shared).write(temporary)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            sync(path.parent)

    try:
        _together(prepare)
        _write_shards(temporary, _boxes(starts, vectors))
        shards = _gather({f.name: digest(f) for f in temporary.glob(f"__{rank}_*")})
        _together(finish)
    except (RunError, dcp.CheckpointException) as error:
        raise RunError(f"{path}: cannot be written: {_reason(error)}") from error


def load_checkpoint(
    path: Path, fingerprint: str, starts: Mapping[Shard, int], vectors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Fill this rank's vectors from a checkpoint of any layout; all ranks must call it.

    Args:
        path: the folder.
        fingerprint: identifies the model that will continue.
        starts: where each of this rank's shards starts in the vectors, in elements.
        vectors: by the names under which they were saved, each of shape [elements].

    Returns:
        The scalars.

    Raises:
        DamageError: the folder is missing or damaged.
        RunError: it belongs to another model.
    """
    manifest = read_manifest(path)
    if (found := manifest.fingerprint) != fingerprint:
        raise RunError(
            f"{path}: holds a state of model '{found}', but model '{fingerprint}' is to continue; "
            "delete it to start anew"
        )
    files = sorted(manifest.files)[dist.get_rank() :: dist.get_world_size()]
    _together(lambda: manifest.check(path, files), DamageError)  # the reading is shared
    try:
        dcp.load(
            _boxes(starts, vectors),
            storage_reader=PlainReader(path),
            planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
    except dcp.CheckpointException as error:
        raise DamageError(f"{path}: cannot be read: {_reason(error)}") from error
    return torch.load(path / SCALARS, map_location="cpu", weights_only=True)


# --- tensors ------------------------------------------------------------------------------------


def _boxes(starts: Mapping[Shard, int], vectors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return views of this rank's shards by vector and whole tensor."""
    flat = FlatShards(starts, tuple(vectors.values()))
    return {
        f"{vector}/{shard.name}": BoxTensor.of(flat.view(shard.name, shard.box, buffer), shard)
        for buffer, vector in enumerate(vectors)
        for shard in starts
    }


def _write_shards(folder: Path, boxes: dict[str, Any]) -> None:
    dcp.save(
        boxes,
        storage_writer=dcp.FileSystemWriter(folder),
        planner=dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )


def _gather(mine: dict[str, str]) -> dict[str, str]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {name: digest for part in parts for name, digest in part.items()}


def _together(action: Callable[[], None], kind: type[RunError] = RunError) -> None:
    """Run a rank's part of some work; where one rank fails all raise an error, none waits."""
    finding = ""
    try:
        action()
    except (OSError, RunError) as error:
        finding = _reason(error)
    findings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(findings, finding)
    if found := next(filter(None, findings), None):
        raise kind(found)


def _reason(error: BaseException) -> str:
    """Return the first line of what went wrong, on whichever rank."""
    if isinstance(error, dcp.CheckpointException):
        error = next(exception for exception, _ in error.failures.values())
    return " ".join(str(error).split())
