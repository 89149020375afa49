"""The only place where anything is unpickled: what could run code is refused.

A pickle names functions that are called when it is read. Checksums do not help against a file that
somebody made on purpose; what may be named is listed instead.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cona.errors import DamageError

_METADATA = "torch.distributed.checkpoint.metadata"
_DESCRIPTIONS = {
    ("pathlib", "PosixPath"),  # where it was written
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        (_METADATA, name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
"""What the metadata of a checkpoint may name, beside torch's types of elements. Nothing that holds
bytes: torch would unpickle those freely."""

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's own switch: every torch.load in this process reads tensors and plain values only."""


def load_plain(source: io.BytesIO | Path, path: Path) -> Any:
    """Read what torch.save wrote: tensors, plain values and containers of them.

    Args:
        source: the file, or what it holds.
        path: the file, for messages.

    Raises:
        DamageError: it holds something else, which could run code.
    """
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DamageError(
            f"{path}: holds more than tensors and plain values, and could run code: it is not read"
        ) from error


def load_descriptions(content: bytes) -> Any:
    """Read the metadata of a torch.distributed checkpoint.

    Raises:
        pickle.UnpicklingError: it names anything that does not describe a tensor.
    """
    return _DescriptionsOnly(io.BytesIO(content)).load()


class _DescriptionsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_known = (module, name) in _DESCRIPTIONS
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not (is_known or is_dtype):
            raise pickle.UnpicklingError(f"{module}.{name} does not describe a tensor")
        return super().find_class(module, name)


@contextmanager
def plain_loads_of_deepspeed() -> Iterator[None]:
    """Let DeepSpeed, which loads its files without any such care, read what it writes and no more.

    Raises:
        pickle.UnpicklingError: in the block, where a file names anything else.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        del os.environ[_FORCE]
        if before is not None:
            os.environ[_FORCE] = before
