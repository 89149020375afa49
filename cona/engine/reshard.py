"""The live switch: weights and Adam moments move between ranks, in memory and in bounded chunks.

Source: method.md 7; which pieces move is decided in ``cona.engine.transfers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from cona.engine.shards import Box, Shard
from cona.engine.transfers import Plan, Transfer, plan

__all__ = ["CHUNK_BYTES", "FlatShards", "Moved", "move", "plan"]

CHUNK_BYTES = 32 * 2**20
"""ASSUMED: most bytes that a rank has in flight, those it sends and receives together."""


@dataclass(frozen=True)
class FlatShards:
    """A rank's shards in flat buffers that all have the same order: weights and moments."""

    starts: Mapping[Shard, int]
    """Where each shard starts, in elements; row-major from there."""
    buffers: Sequence[Tensor]
    """Each of shape [elements], all of one dtype and device."""

    @cached_property
    def _by_name(self) -> dict[str, Shard]:
        return {shard.name: shard for shard in self.starts}

    def shard(self, name: str) -> Shard | None:
        """Return the rank's shard of a whole tensor, or None if it has none."""
        return self._by_name.get(name)

    def view(self, name: str, box: Box, buffer: int) -> Tensor:
        """Return a box of a whole tensor as a view of one buffer, shape ``box.shape``.

        Args:
            name: of a tensor of which this rank has a shard.
            box: inside that shard.
            buffer: which of the buffers.
        """
        shard = self._by_name[name]
        rows = slice(self.starts[shard], self.starts[shard] + shard.numel)
        inside = tuple(
            slice(low - start, low - start + extent)
            for low, start, extent in zip(box.offset, shard.offset, box.shape, strict=True)
        )
        return self.buffers[buffer][rows].view(shard.shape)[inside]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a switch cost one rank."""

    sent_bytes: int
    """Bytes sent to other ranks."""
    received_bytes: int
    """Bytes received from other ranks."""
    needed_bytes: int
    """Bytes that the rank needs and did not hold: the lower bound of what it receives."""


class _Part(NamedTuple):
    """What one message carries of one buffer."""

    buffer: int
    name: str
    box: Box


_Message = list[_Part]


def move(
    plan: Plan,
    rank: int,
    old: FlatShards,
    new: FlatShards,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    group: dist.ProcessGroup | None = None,
) -> Moved:
    """Fill a rank's new buffers from its old ones and from other ranks'; all ranks must call it.

    Args:
        plan: of the two layouts.
        rank: this rank, counted in the group.
        old: what the rank holds; not changed.
        new: where it belongs; as many buffers, of the same dtype, none shared with ``old``.
        chunk_bytes: most bytes of messages in flight on this rank.
        group: process group of all ranks; None: the world.

    Raises:
        ValueError: a chunk has no room for one element to send and one to receive.
    """
    dtype_bytes = new.buffers[0].element_size()
    if (most := chunk_bytes // (2 * dtype_bytes)) < 1:
        raise ValueError(f"chunk_bytes {chunk_bytes}: must be at least {2 * dtype_bytes}")
    _keep(old, new)
    sent, received = _exchange(plan, rank, old, new, most, group)
    needed = plan.num_lacking(rank) * len(new.buffers)
    return Moved(
        sent_bytes=sent * dtype_bytes,
        received_bytes=received * dtype_bytes,
        needed_bytes=needed * dtype_bytes,
    )


def _keep(old: FlatShards, new: FlatShards) -> None:
    """Copy what a rank holds under both layouts."""
    for shard in new.starts:
        held = old.shard(shard.name)
        if held and (box := held.box.common(shard.box)):
            for buffer in range(len(new.buffers)):
                new.view(shard.name, box, buffer).copy_(old.view(shard.name, box, buffer))


def _exchange(
    plan: Plan,
    rank: int,
    old: FlatShards,
    new: FlatShards,
    most: int,
    group: dist.ProcessGroup | None,
) -> tuple[int, int]:
    """Send and receive in the same order of peers on every rank: no rank waits in a circle.

    In turn k a rank sends to rank + k and receives from rank - k, message by message. Whoever is
    behind all others in (turn, message) finds both its partners there or further on, so it goes on.
    """
    num_ranks, num_buffers = plan.new.num_gpus, len(new.buffers)
    outgoing = _by_peer((t.target, t) for t in plan.transfers if t.source == rank)
    incoming = _by_peer((t.source, t) for t in plan.transfers if t.target == rank)
    sending, receiving = (_Mailbox(new.buffers[0], most) for _ in range(2))
    for turn in range(1, num_ranks):
        above, below = (rank + turn) % num_ranks, (rank - turn) % num_ranks
        to_send = _messages(outgoing.get(above, ()), num_buffers, most)
        to_receive = _messages(incoming.get(below, ()), num_buffers, most)
        for leaving, coming in zip_longest(to_send, to_receive):
            operations = []
            if leaving:
                letter = sending.pack(leaving, old)
                operations.append(dist.P2POp(dist.isend, letter, group=group, group_peer=above))
            if coming:
                letter = receiving.letter(coming)
                operations.append(dist.P2POp(dist.irecv, letter, group=group, group_peer=below))
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            if coming:
                receiving.unpack(coming, new)
    return sending.num_moved, receiving.num_moved


class _Mailbox:
    """One buffer through which all messages of one direction pass."""

    def __init__(self, like: Tensor, most: int) -> None:
        self._buffer = like.new_empty(most)
        self.num_moved = 0

    def letter(self, message: _Message) -> Tensor:
        """Return the part of the buffer that a message fills."""
        numel = sum(part.box.numel for part in message)
        self.num_moved += numel
        return self._buffer[:numel]

    def pack(self, message: _Message, shards: FlatShards) -> Tensor:
        """Copy a message's parts side by side, and return them."""
        for part, piece in self._pieces(message):
            piece.copy_(shards.view(part.name, part.box, part.buffer))
        return self.letter(message)

    def unpack(self, message: _Message, shards: FlatShards) -> None:
        """Copy a message's parts to where they belong."""
        for part, piece in self._pieces(message):
            shards.view(part.name, part.box, part.buffer).copy_(piece)

    def _pieces(self, message: _Message) -> Iterator[tuple[_Part, Tensor]]:
        start = 0
        for part in message:
            stop = start + part.box.numel
            yield part, self._buffer[start:stop].view(part.box.shape)
            start = stop


def _by_peer(transfers: Iterable[tuple[int, Transfer]]) -> dict[int, list[Transfer]]:
    found: dict[int, list[Transfer]] = {}
    for peer, transfer in transfers:
        found.setdefault(peer, []).append(transfer)
    return found


def _messages(transfers: Iterable[Transfer], num_buffers: int, most: int) -> Iterator[_Message]:
    """Pack transfers into messages of at most ``most`` elements; sender and receiver agree."""
    message: _Message = []
    room = most
    for transfer in transfers:
        for box in transfer.box.cut(most):
            for buffer in range(num_buffers):
                if box.numel > room:
                    yield message
                    message, room = [], most
                message.append(_Part(buffer, transfer.name, box))
                room -= box.numel
    if message:
        yield message
