"""Which part of which parameter a rank holds under a layout, before any tensor exists.

A part is a box in the global tensor, so that any two layouts can be compared by intersecting
boxes. Llama's first feed-forward matrix is the gate stacked on the up projection and each is split
for itself: seen as [2, ffn, hidden] a rank's part of it is one box as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cona.cost.state import Place
from cona.errors import ConfigError
from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Layout, StrategySpace

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"


class Box(NamedTuple):
    """A rectangular part of a tensor."""

    offset: tuple[int, ...]
    """Where it starts, in elements along each dimension."""
    shape: tuple[int, ...]
    """How far it extends along each dimension."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """Return the box of the elements that are in both, or None if there are none."""
        low = tuple(map(max, self.offset, other.offset))
        high = map(min, self._ends(), other._ends())
        shape = tuple(h - start for h, start in zip(high, low, strict=True))
        return Box(low, shape) if min(shape) > 0 else None

    def _ends(self) -> Iterator[int]:
        return map(int.__add__, self.offset, self.shape)

    def cut(self, most: int) -> Iterator[Box]:
        """Cut into boxes of at most ``most`` elements, in row-major order.

        Args:
            most: at least 1.
        """
        if self.numel <= most:
            yield self
            return
        dim = next(d for d, extent in enumerate(self.shape) if extent > 1)
        step = max(1, most * self.shape[dim] // self.numel)
        for start in range(0, self.shape[dim], step):
            extent = min(step, self.shape[dim] - start)
            yield from self._rows(dim, start, extent).cut(most)

    def _rows(self, dim: int, start: int, extent: int) -> Box:
        offset, shape = list(self.offset), list(self.shape)
        offset[dim] += start
        shape[dim] = extent
        return Box(tuple(offset), tuple(shape))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of a global tensor that one rank holds as a parameter of its module."""

    name: str
    """Megatron's name of the whole tensor, layers counted over all stages; a tied output weight
    carries the embedding's."""
    local_name: str
    """Name of the parameter in the rank's module, layers counted from 0 on its stage."""
    global_shape: tuple[int, ...]
    """Shape of the whole tensor; the parameter's own, but for a stack: [2, ffn, hidden]."""
    offset: tuple[int, ...]
    """Where the part starts in the whole tensor."""
    shape: tuple[int, ...]
    """Shape of the part; row-major it is the parameter."""
    is_counted: bool
    """This rank counts it in norms and statistics: over tp and pp every element counts once."""
    is_decayed: bool
    """AdamW's weight decay applies: to matrices."""

    @property
    def box(self) -> Box:
        """The part as a box of the whole tensor."""
        return Box(self.offset, self.shape)

    @property
    def numel(self) -> int:
        """Number of elements of the part."""
        return math.prod(self.shape)


class _Parameter(NamedTuple):
    """A whole tensor and how tensor parallelism splits it."""

    name: str
    shape: tuple[int, ...]
    split_dim: int | None = None
    """Dimension that is split; None: every tensor-parallel rank holds all of it."""


def shards(spec: ModelSpec, layout: Layout, rank: int) -> tuple[Shard, ...]:
    """Return what a rank holds, in the order of its module's ``named_parameters()``.

    Args:
        spec: the model.
        layout: degrees that divide the model.
        rank: 0 to number of GPUs - 1, tp fastest, then pp, then dp.

    Raises:
        ConfigError: the model does not divide into the layout, or it has no such rank.
    """
    if not 0 <= rank < layout.num_gpus:
        raise ConfigError(f"rank {rank}: layout {layout} has ranks 0 to {layout.num_gpus - 1}")
    return shards_at(spec, layout, Place.of(rank, layout))


@lru_cache(maxsize=1024)
def shards_at(spec: ModelSpec, layout: Layout, place: Place) -> tuple[Shard, ...]:
    """Return what the ranks of a stage and slice hold; all data-parallel replicas hold the same.

    Args:
        spec: the model.
        layout: degrees that divide the model.
        place: stage below pp, slice below tp.

    Raises:
        ConfigError: the model does not divide into the layout.
    """
    space = StrategySpace(model=spec, num_gpus=layout.num_gpus, ladder=LadderSpec())
    if rule := space.why_not_layout(layout):
        raise ConfigError(f"layout {layout} does not fit model {spec.name}: {rule}")
    return tuple(_stage_shards(spec, layout, place))


def _stage_shards(spec: ModelSpec, layout: Layout, place: Place) -> Iterator[Shard]:
    is_first, is_last = place.stage == 0, place.stage == layout.pp - 1
    if is_first:
        yield from (_shard(p, p.name, layout, place) for p in _embeddings(spec))
    num_layers = spec.num_layers // layout.pp
    for local in range(num_layers):
        mine, whole = (_layer(spec, n) for n in (local, place.stage * num_layers + local))
        for parameter, local_name in zip(whole, (p.name for p in mine), strict=True):
            yield _shard(parameter, local_name, layout, place)
    if is_last:
        yield from (_shard(p, p.name, layout, place) for p in _final(spec))
        yield from _head(spec, layout, place, is_first=is_first)


def _head(spec: ModelSpec, layout: Layout, place: Place, *, is_first: bool) -> Iterator[Shard]:
    """The output weight, unless it is the embedding of this very stage, and BERT's output bias."""
    table = (spec.padded_vocab_size, spec.hidden_size)
    if not spec.tied_embeddings:
        yield _shard(_Parameter(HEAD, table, 0), HEAD, layout, place)
    elif not is_first:
        yield _shard(_Parameter(EMBEDDING, table, 0), HEAD, layout, place, is_copy=True)
    if spec.family == "bert":
        bias = _Parameter("output_layer.bias", table[:1], 0)
        yield _shard(bias, bias.name, layout, place)


def _shard(
    parameter: _Parameter, local_name: str, layout: Layout, place: Place, *, is_copy: bool = False
) -> Shard:
    """Cut a slice's part out of a whole tensor."""
    shape, dim = parameter.shape, parameter.split_dim
    part, offset = list(shape), [0] * len(shape)
    if dim is not None:
        part[dim] = shape[dim] // layout.tp
        offset[dim] = place.slice * part[dim]
    return Shard(
        name=parameter.name,
        local_name=local_name,
        global_shape=shape,
        offset=tuple(offset),
        shape=tuple(part),
        is_counted=not is_copy and (dim is not None or place.slice == 0),
        is_decayed=len(shape) > 1,
    )


def _embeddings(spec: ModelSpec) -> Iterator[_Parameter]:
    h = spec.hidden_size
    yield _Parameter(EMBEDDING, (spec.padded_vocab_size, h), 0)
    if spec.family != "llama":
        yield _Parameter("embedding.position_embeddings.weight", (spec.seq_length, h))
    if spec.family == "bert":
        yield _Parameter("embedding.tokentype_embeddings.weight", (2, h))


def _layer(spec: ModelSpec, index: int) -> list[_Parameter]:
    """One transformer layer; query, key and value of a group of heads stand together."""
    h, f, is_llama = spec.hidden_size, spec.ffn_size, spec.family == "llama"
    qkv = h + 2 * spec.num_kv_heads * spec.head_size
    up, split = ((2, f, h), 1) if is_llama else ((f, h), 0)
    layer = f"{_stack(spec)}.layers.{index}"
    attention, mlp = f"{layer}.self_attention", f"{layer}.mlp"
    weights_and_biases = [
        *_norm(f"{layer}.input_layernorm", spec),
        _Parameter(f"{attention}.linear_proj.weight", (h, h), 1),
        _Parameter(f"{attention}.linear_proj.bias", (h,)),
        _Parameter(f"{attention}.linear_qkv.weight", (qkv, h), 0),
        _Parameter(f"{attention}.linear_qkv.bias", (qkv,), 0),
        *_norm(f"{layer}.pre_mlp_layernorm", spec),
        _Parameter(f"{mlp}.linear_fc1.weight", up, split),
        _Parameter(f"{mlp}.linear_fc1.bias", (f,), 0),
        _Parameter(f"{mlp}.linear_fc2.weight", (h, f), 1),
        _Parameter(f"{mlp}.linear_fc2.bias", (h,)),
    ]
    return [p for p in weights_and_biases if not (is_llama and p.name.endswith("bias"))]


def _final(spec: ModelSpec) -> Iterator[_Parameter]:
    """The norm after the last layer and the dense layer of BERT's head."""
    yield from _norm(f"{_stack(spec)}.final_layernorm", spec)
    if spec.family == "bert":
        yield _Parameter("lm_head.dense.weight", (spec.hidden_size, spec.hidden_size))
        yield _Parameter("lm_head.dense.bias", (spec.hidden_size,))
        yield from _norm("lm_head.layer_norm", spec)


def _norm(name: str, spec: ModelSpec) -> Iterator[_Parameter]:
    yield _Parameter(f"{name}.weight", (spec.hidden_size,))
    if spec.family != "llama":
        yield _Parameter(f"{name}.bias", (spec.hidden_size,))


def _stack(spec: ModelSpec) -> str:
    """Megatron's name of the transformer layers."""
    return "decoder" if spec.is_causal else "encoder"
