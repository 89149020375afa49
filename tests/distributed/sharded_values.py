"""Flat buffers whose every element says where it belongs, for moves between layouts."""

from __future__ import annotations

import math
from zlib import crc32

import torch

from cona.engine.reshard import FlatShards
from cona.engine.shards import shards
from cona.specs import ModelSpec
from cona.strategy import Layout

NUM_BUFFERS = 3


def starts_of(spec: ModelSpec, layout: Layout, rank: int) -> dict:
    """Place shards behind one another, in an order of the layout's own."""
    starts, end = {}, 0
    for shard in sorted(shards(spec, layout, rank), key=lambda s: (s.numel * layout.tp, s.name)):
        starts[shard] = end
        end += shard.numel
    return starts


def empty_buffers(starts: dict) -> list[torch.Tensor]:
    """Return buffers in which a shard that is not filled would show."""
    return [torch.full((sum(s.numel for s in starts),), torch.nan) for _ in range(NUM_BUFFERS)]


def filled(spec: ModelSpec, layout: Layout, rank: int) -> FlatShards:
    """Give every element a value that names its tensor, its place in it and the buffer."""
    starts = starts_of(spec, layout, rank)
    flat = FlatShards(starts, empty_buffers(starts))
    for buffer in range(NUM_BUFFERS):
        for shard in starts:
            index = torch.arange(math.prod(shard.global_shape)).view(shard.global_shape)
            box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.shape, strict=True))
            mark = crc32(shard.name.encode()) % 499
            value = (index[box] * 499 + mark) * NUM_BUFFERS + buffer  # exact: below 2^24
            flat.view(shard.name, shard.box, buffer).copy_(value)
    return flat
