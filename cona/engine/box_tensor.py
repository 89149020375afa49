"""How ``torch.distributed.checkpoint`` sees a shard: as a box of a whole tensor.

Its protocol for tensors that are spread over ranks has three methods; DTensor implements the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from cona.engine.shards import Shard
from cona.engine.unpickling import load_descriptions


class BoxTensor(Tensor):
    """A rank's box of a whole tensor, whose size it claims to have."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    shard: Shard

    @staticmethod
    def of(view: Tensor, shard: Shard) -> BoxTensor:
        """Mark a tensor, without a copy, as the part of a whole tensor that a shard describes.

        Args:
            view: shape ``shard.shape``.
            shard: where it belongs.
        """
        box = view.as_subclass(BoxTensor)
        box.shard = shard
        return box

    def size(self, dim: int | None = None) -> Any:
        """Return the whole tensor's size, which the checkpoint's must equal."""
        whole = torch.Size(self.shard.global_shape)
        return whole if dim is None else whole[dim]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        """Return what this rank could write; ranks that hold the same box agree on one of them."""
        data = TensorWriteData(
            chunk=self._chunk,
            properties=TensorProperties(dtype=self.dtype),
            size=torch.Size(self.shard.global_shape),
        )
        index = MetadataIndex(name, self._chunk.offsets)
        return [WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return the boxes that this rank wants to read."""
        return [self._chunk]

    def __get_tensor_shard__(self, _: MetadataIndex) -> Tensor:
        """Return the plain tensor that is written or read into."""
        return self.as_subclass(Tensor)

    @property
    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(
            offsets=torch.Size(self.shard.offset), sizes=torch.Size(self.shard.shape)
        )


class PlainReader(FileSystemReader):
    """Reads a checkpoint whose metadata, a pickle, may name descriptions of tensors only."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what the checkpoint holds.

        Raises:
            pickle.UnpicklingError: the file names anything that could run code.
        """
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as stream:
            metadata: Metadata = load_descriptions(stream.read())
            return metadata
