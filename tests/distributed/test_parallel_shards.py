"""Shards are what megatron's modules hold on every rank of a parallel layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from engine_fixtures import FAMILIES, tiny
from layouts import layouts_of
from ranks import run_ranks

from cona.engine.shards import Shard, shards
from cona.specs import ModelSpec
from cona.strategy import Layout

Found = list[tuple[str, tuple[int, ...], bool, int, int]]
"""Name, shape and megatron's marks of each parameter: split at all, along which dimension, and
into how many interleaved blocks."""


def _built(rank: int, specs: list[ModelSpec], num_ranks: int) -> list[Found]:
    from cona.engine import cpu, models
    from cona.engine.groups import GroupCache

    # Megatron marks what is split only where it sets initial weights.
    initialising = _with(models._config, perform_initialization=True)
    cpu.install()
    groups = GroupCache()
    found = []
    for spec, layout in _cases(specs, num_ranks):
        groups.activate(layout)
        with mock.patch.object(models, "_config", initialising):
            module = models.build_stage(spec, layout, dtype=torch.float32, recompute="none")
        found.append([_described(*named) for named in module.named_parameters()])
    return found


def _with(function: Callable[..., Any], **always: Any) -> Callable[..., Any]:
    return lambda *args, **options: function(*args, **options | always)


def _cases(specs: list[ModelSpec], num_ranks: int) -> Iterator[tuple[ModelSpec, Layout]]:
    for spec in specs:
        for layout in layouts_of(spec, num_ranks):
            yield spec, layout


def _described(name: str, parameter: torch.nn.Parameter) -> tuple:
    is_split = getattr(parameter, "tensor_model_parallel", False)
    marks = (parameter.partition_dim, parameter.partition_stride) if is_split else (-1, 1)
    return name, tuple(parameter.shape), is_split, *marks


def _expected(shard: Shard, layout: Layout) -> tuple:
    """Describe a shard as megatron would; a stack is one matrix of two interleaved blocks."""
    split = [d for d, n in enumerate(shard.shape) if n < shard.global_shape[d]]
    shape, is_stack = shard.shape, len(shard.shape) == 3
    if is_stack:
        shape, split = (shape[0] * shape[1], shape[2]), [d - 1 for d in split]
    stride = 2 if is_stack and split else 1
    return shard.local_name, shape, bool(split), split[0] if split else -1, stride


def test_shards_are_what_megatron_builds_on_every_rank():
    specs = [
        tiny(family, num_layers=4, num_kv_heads=4, tied_embeddings=tied, tp_max=4)
        for family in FAMILIES
        for tied in (True, False)
    ]
    for rank, built in enumerate(run_ranks(_built, 4, specs, 4)):
        for (spec, layout), found in zip(_cases(specs, 4), built, strict=True):
            held = [_expected(shard, layout) for shard in shards(spec, layout, rank)]
            assert [described[:2] for described in found] == [h[:2] for h in held]
            if layout.tp > 1:  # else megatron marks all of them, and nothing is split
                assert found == held, f"{spec.name} {layout} rank {rank}"
