"""The restart path: a state on disk that any layout and any number of ranks can load.

A checkpoint is a folder: torch.distributed.checkpoint's files (each box once, however many ranks
hold it), the scalars, and a manifest with the SHA-256 of every other file. It is written beside its
place and renamed when it is complete. Nothing is unpickled that could run code.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem

from cona.engine.box_tensor import BoxTensor, PlainReader
from cona.engine.manifest import Manifest, digest, read_manifest, sync
from cona.engine.reshard import FlatShards
from cona.engine.shards import Shard
from cona.engine.unpickling import load_plain
from cona.errors import DamageError, RunError
from cona.storage import discard, draft_of, refusal

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
        StorageError: the folder cannot be written; what stood there may be gone, no other is.
    """
    temporary, rank = _draft(path), dist.get_rank()
    mine: dict[str, str] = {}

    def prepare() -> None:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()

    def read_back() -> None:
        mine.update({f.name: digest(f) for f in temporary.glob(f"__{rank}_*")})

    def finish() -> None:
        if rank == 0:
            _write_scalars(temporary / SCALARS, scalars)
            shared = {name: digest(temporary / name) for name in (SCALARS, ".metadata")}
            Manifest(fingerprint=fingerprint, files=shards | shared).write(temporary)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            sync(path.parent)

    try:
        _together(prepare)
        _write_shards(temporary, _boxes(starts, vectors))
        _together(read_back)
        shards = _gather(mine)
        _together(finish)
    except (OSError, dcp.CheckpointException) as error:
        num_bytes = sum(vector.nbytes for vector in vectors.values())
        if rank == 0:
            discard(temporary)  # on a full disk it stands in the way
        raise refusal(_cause(error), path, num_bytes) from error


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
    _together(lambda: manifest.check(path, files))  # the reading is shared
    try:
        dcp.load(
            _boxes(starts, vectors),
            storage_reader=PlainReader(path),
            planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
    except dcp.CheckpointException as error:
        raise DamageError(f"{path}: cannot be read: {_text(_first_failure(error))}") from error
    scalars: dict[str, Any] = load_plain(path / SCALARS, path)
    return scalars


# --- tensors ------------------------------------------------------------------------------------


def _boxes(starts: Mapping[Shard, int], vectors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return views of this rank's shards by vector and whole tensor."""
    flat = FlatShards(starts, tuple(vectors.values()))
    return {
        f"{vector}/{shard.name}": BoxTensor.of(flat.view(shard.name, shard.box, buffer), shard)
        for buffer, vector in enumerate(vectors)
        for shard in starts
    }


class _Files(FileSystem):
    """Says what a disk refused, which torch's writer hides behind an error of its own."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _write_shards(folder: Path, boxes: dict[str, Any]) -> None:
    writer = dcp.FileSystemWriter(folder)
    writer.fs = _Files()
    dcp.save(
        boxes,
        storage_writer=writer,
        planner=dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )


def _write_scalars(path: Path, scalars: Mapping[str, Any]) -> None:
    """Write them through memory: torch.save to a file hides why it failed."""
    content = io.BytesIO()
    torch.save(dict(scalars), content)
    path.write_bytes(content.getbuffer())
    sync(path)


def _gather(mine: dict[str, str]) -> dict[str, str]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {name: digest for part in parts for name, digest in part.items()}


def _draft(path: Path) -> Path:
    """Return where this run's rank 0 writes first, the same on every rank; no other host does."""
    name = [draft_of(path).name if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(name)
    return path.with_name(name[0])


def _together(action: Callable[[], None]) -> None:
    """Run a rank's part of some work; where one rank fails all raise its error, none waits."""
    finding: OSError | RunError | None = None
    try:
        action()
    except (OSError, RunError) as error:
        finding = error
    findings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(findings, finding)
    if found := next(filter(None, findings), None):
        raise found


def _cause(error: OSError | dcp.CheckpointException) -> OSError:
    """Return why a checkpoint could not be written, on whichever rank."""
    cause = error if isinstance(error, OSError) else _first_failure(error)
    return cause if isinstance(cause, OSError) else OSError(_text(cause))


def _first_failure(error: dcp.CheckpointException) -> BaseException:
    return next(exception for exception, _ in error.failures.values())


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())
