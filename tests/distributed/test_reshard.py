"""A live switch between real ranks: every bit arrives, nothing else is sent, memory is bounded."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from engine_fixtures import FAMILIES, tiny
from layouts import layouts_of
from ranks import run_ranks
from sharded_values import empty_buffers, filled, starts_of

from cona.config import override
from cona.engine import reshard
from cona.engine.reshard import FlatShards, Moved, move, plan
from cona.specs import ModelSpec
from cona.strategy import Layout

CHUNK_BYTES = 1 << 14
"""Smaller than most of what a rank sends to another."""


@contextmanager
def watched_messages(log: list[int]) -> Iterator[None]:
    """Record the bytes of each batch of messages that this rank has in flight."""
    exchange = dist.batch_isend_irecv

    def watched(operations):
        log.append(sum(op.tensor.nbytes for op in operations))
        assert all(op.peer != dist.get_rank() for op in operations)
        return exchange(operations)

    with mock.patch.object(reshard.dist, "batch_isend_irecv", watched):
        yield


def _switch(spec: ModelSpec, old: Layout, new: Layout, rank: int, **options) -> Moved:
    before = filled(spec, old, rank)
    copies = [buffer.clone() for buffer in before.buffers]
    starts = starts_of(spec, new, rank)
    after = FlatShards(starts, empty_buffers(starts))
    moved = move(plan(spec, old, new), rank, before, after, **options)
    for mine, expected in zip(after.buffers, filled(spec, new, rank).buffers, strict=True):
        assert torch.equal(mine, expected), f"{old} -> {new}"
    for mine, expected in zip(before.buffers, copies, strict=True):
        assert torch.equal(mine, expected)
    return moved


def _all_pairs(rank: int, specs: list[ModelSpec], num_ranks: int) -> dict:
    """Switch between all pairs of layouts; return what each moved and the bytes on the wire."""
    found = {}
    for spec in specs:
        for old, new in permutations(layouts_of(spec, num_ranks), 2):
            in_flight: list[int] = []
            with watched_messages(in_flight):
                moved = _switch(spec, old, new, rank, chunk_bytes=CHUNK_BYTES)
            found[spec.name, spec.tied_embeddings, old, new] = moved, in_flight
    return found


def test_all_pairs_of_layouts_of_four_ranks():
    specs = [tiny(family, num_layers=4, num_kv_heads=4) for family in FAMILIES]
    specs.append(override(specs[0], {"tied_embeddings": False}))
    ranks = run_ranks(_all_pairs, 4, specs, 4)
    assert len(ranks[0]) == len(specs) * 6 * 5  # ordered pairs of the six layouts
    for switch in ranks[0]:
        everyone = [rank[switch] for rank in ranks]
        for moved, in_flight in everyone:
            assert moved.received_bytes == moved.needed_bytes
            assert sum(in_flight) == moved.sent_bytes + moved.received_bytes
            assert max(in_flight, default=0) <= CHUNK_BYTES
        assert sum(m.sent_bytes for m, _ in everyone) == sum(m.needed_bytes for m, _ in everyone)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6, 8])
def test_other_numbers_of_ranks(num_ranks):
    spec = tiny("gpt", num_layers=6, num_heads=24, num_kv_heads=24, hidden_size=24, tp_max=3)
    run_ranks(_some_pairs, num_ranks, spec, num_ranks)


def _some_pairs(rank: int, spec: ModelSpec, num_ranks: int) -> None:
    choices = layouts_of(spec, num_ranks)
    for old, new in zip(choices, choices[1:] + choices[:1], strict=True):
        _switch(spec, old, new, rank)


def test_chunks_may_be_as_small_as_one_element_and_no_smaller():
    run_ranks(_tiny_chunks, 2, tiny("llama", num_layers=2, hidden_size=4, num_kv_heads=4))


def _tiny_chunks(rank: int, spec: ModelSpec) -> None:
    layouts = Layout(dp=1, tp=2, pp=1), Layout(dp=1, tp=1, pp=2)
    _switch(spec, *layouts, rank, chunk_bytes=24)
    with pytest.raises(ValueError, match="chunk_bytes 7: must be at least 8"):
        _switch(spec, *layouts, rank, chunk_bytes=7)


def test_a_subgroup_counts_its_own_ranks():
    run_ranks(_in_subgroup, 3, tiny("gpt"))


def _in_subgroup(rank: int, spec: ModelSpec) -> None:
    group = dist.new_group([2, 1])
    if rank:
        own = dist.get_rank(group)
        _switch(spec, Layout(dp=1, tp=2, pp=1), Layout(dp=1, tp=1, pp=2), own, group=group)


def test_a_switch_takes_no_more_memory_than_its_chunk():
    growths = run_ranks(_growth_of_peak_memory, 2, tiny("gpt", hidden_size=512, ffn_size=2048))
    assert max(growths) < 6 * 2**20, growths


def _growth_of_peak_memory(rank: int, spec: ModelSpec) -> int:
    """Move some 40 MB in chunks of 1 MiB; return by how many bytes the process grew at its peak."""
    old, new = Layout(dp=1, tp=2, pp=1), Layout(dp=2, tp=1, pp=1)
    _switch(tiny("gpt"), old, new, rank)  # what gloo and Python take once
    path = plan(spec, old, new)
    starts = [starts_of(spec, layout, rank) for layout in (old, new)]
    before, after = (FlatShards(s, empty_buffers(s)) for s in starts)
    start_bytes = _peak_bytes()
    moved = move(path, rank, before, after, chunk_bytes=2**20)
    assert moved.received_bytes > 30 * 2**20
    return _peak_bytes() - start_bytes


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
