"""Which pieces of which tensors move between ranks when the layout changes.

A rank keeps what it holds and receives exactly what it lacks. Replicas hold the same, so most
pieces can come from several ranks: each comes from the one that has sent the least so far. Every
rank computes the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cona.cost.state import Place
from cona.engine.shards import Box, Shard, shards, shards_at
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import Layout

FINENESS = 16
"""ASSUMED: pieces are at most this fraction of a rank's mean share of the sending, which also
bounds how much more than its share a rank sends; finer pieces cost Python time."""

SMALLEST_CUT = 1 << 14
"""ASSUMED: elements below which a piece is not worth cutting (64 KiB of float32)."""


class Transfer(NamedTuple):
    """A box of a tensor that one rank sends to another."""

    source: int
    target: int
    name: str
    """Of the whole tensor."""
    box: Box


class _Lack(NamedTuple):
    """A box that a rank needs and does not hold, and the ranks that do."""

    target: int
    name: str
    box: Box
    holders: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every transfer of a switch of layout."""

    spec: ModelSpec
    old: Layout
    new: Layout
    transfers: tuple[Transfer, ...]
    """In an order that every rank shares."""

    def num_lacking(self, rank: int) -> int:
        """Return how many elements a rank needs and does not hold: what it must receive at least.

        Computed from its shards alone, as a judge of the transfers.
        """
        held = {shard.name: shard.box for shard in shards(self.spec, self.old, rank)}
        return sum(
            shard.numel - _num_common(shard, held) for shard in shards(self.spec, self.new, rank)
        )


def _num_common(shard: Shard, held: dict[str, Box]) -> int:
    kept = held[shard.name].common(shard.box) if shard.name in held else None
    return kept.numel if kept else 0


@lru_cache(maxsize=64)
def plan(spec: ModelSpec, old: Layout, new: Layout) -> Plan:
    """Return what must move, each piece once, from sources that share the work.

    Args:
        spec: the model.
        old: layout before.
        new: layout after, of the same ranks.

    Raises:
        ConfigError: the model does not divide into a layout, or the number of ranks changes.
    """
    if old.num_gpus != new.num_gpus:
        raise ConfigError(
            f"a live switch from {old} to {new} changes the number of ranks from {old.num_gpus} "
            f"to {new.num_gpus}; it must stay {old.num_gpus}"
        )
    lacks = list(_lacks(spec, old, new))
    share = sum(lack.box.numel for lack in lacks) // old.num_gpus
    pieces = _cut(lacks, max(share // FINENESS, SMALLEST_CUT))
    return Plan(spec=spec, old=old, new=new, transfers=tuple(_with_sources(pieces, old.num_gpus)))


def _lacks(spec: ModelSpec, old: Layout, new: Layout) -> Iterator[_Lack]:
    holdings = _holdings(spec, old)
    needs: dict[Place, list[tuple[str, Box, tuple[int, ...]]]] = {}
    for target in range(new.num_gpus):
        place = Place.of(target, new)
        if place not in needs:  # replicas need the same
            needs[place] = list(_needs(shards_at(spec, new, place), holdings))
        for name, box, holders in needs[place]:
            if target not in holders:
                yield _Lack(target, name, box, holders)


def _holdings(spec: ModelSpec, layout: Layout) -> dict[str, dict[Box, tuple[int, ...]]]:
    """Return the boxes that exist of every tensor, and which ranks hold each.

    Two boxes of a tensor are either equal or disjoint, and together they are the tensor.
    """
    found: dict[str, dict[Box, list[int]]] = {}
    for rank in range(layout.num_gpus):
        for shard in shards(spec, layout, rank):
            found.setdefault(shard.name, {}).setdefault(shard.box, []).append(rank)
    return {
        name: {box: tuple(ranks) for box, ranks in boxes.items()} for name, boxes in found.items()
    }


def _needs(
    new: Iterable[Shard], holdings: dict[str, dict[Box, tuple[int, ...]]]
) -> Iterator[tuple[str, Box, tuple[int, ...]]]:
    for shard in new:
        for held, holders in holdings[shard.name].items():
            if common := shard.box.common(held):
                yield shard.name, common, holders


def _cut(lacks: list[_Lack], most: int) -> Iterator[_Lack]:
    for lack in lacks:
        for box in lack.box.cut(most):
            yield lack._replace(box=box)


def _with_sources(pieces: Iterable[_Lack], num_ranks: int) -> Iterator[Transfer]:
    """Choose a source for every piece: those with the fewest holders first, then the largest."""
    num_sent = [0] * num_ranks
    for piece in sorted(pieces, key=lambda piece: (len(piece.holders), -piece.box.numel)):
        source = _least_busy(piece, num_sent)
        num_sent[source] += piece.box.numel
        yield Transfer(source, piece.target, piece.name, piece.box)


def _least_busy(piece: _Lack, num_sent: list[int]) -> int:
    """Among equals the next rank below the target, so that not all targets ask the same one."""

    def burden(rank: int) -> tuple[int, int]:
        return num_sent[rank], (piece.target - rank) % len(num_sent)

    return min(piece.holders, key=burden)
