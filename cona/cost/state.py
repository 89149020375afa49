"""Which training state each rank holds under a layout, and what it lacks under the next one.

Ranks are placed tp fastest, then pp, then dp. State is counted as replicated over dp: a ZeRO-1
optimizer would be gathered before a switch.
"""

from __future__ import annotations

from dataclasses import dataclass

from cona.specs import ModelSpec
from cona.strategy import Layout

BYTES_PER_PARAM = 2 + 4 + 8
"""fp16 weight, fp32 master copy, two fp32 Adam moments."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Parameters that move together: one layer, or what stands before or after the layers."""

    sharded: int
    """Parameters that tensor parallelism splits."""
    replicated: int
    """Parameters that every tensor-parallel rank holds: norms, row-parallel biases, positions."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank's position in the model: its stage and its tensor-parallel slice."""

    stage: int
    slice: int

    @classmethod
    def of(cls, rank: int, layout: Layout) -> Place:
        """Return where a rank sits: tp fastest, then pp, then dp."""
        return cls(stage=rank // layout.tp % layout.pp, slice=rank % layout.tp)


def blocks(model: ModelSpec) -> dict[str, Block]:
    """Return the model's parameters by block name; together they are ``model.num_params``."""
    table = model.padded_vocab_size * model.hidden_size
    found = {f"layer{i}": _layer(model) for i in range(model.num_layers)}
    found["table"] = Block(sharded=table, replicated=0)
    if not model.tied_embeddings:
        found["head"] = Block(sharded=table, replicated=0)
    return found | _ends(model)


def _ends(model: ModelSpec) -> dict[str, Block]:
    """What the first and the last stage hold besides tables: positions, final norm, BERT's head."""
    h, positions = model.hidden_size, model.seq_length * model.hidden_size
    if model.family == "llama":
        first, last = Block(sharded=0, replicated=0), Block(sharded=0, replicated=h)
    elif model.family == "gpt":
        first, last = Block(sharded=0, replicated=positions), Block(sharded=0, replicated=2 * h)
    else:  # token types; final norm, the LM head's dense layer, norm and output bias
        first = Block(sharded=0, replicated=positions + 2 * h)
        last = Block(sharded=model.padded_vocab_size, replicated=2 * h + h * h + 3 * h)
    return {"first": first, "last": last}


def _layer(model: ModelSpec) -> Block:
    h, f = model.hidden_size, model.ffn_size
    if model.family == "llama":
        keys_and_values = 2 * h * model.num_kv_heads * model.head_size
        return Block(sharded=2 * h * h + keys_and_values + 3 * h * f, replicated=2 * h)
    return Block(sharded=4 * h * h + 2 * h * f + 3 * h + f, replicated=6 * h)


def names_on(stage: int, layout: Layout, model: ModelSpec) -> set[str]:
    """Return the names of the blocks that a pipeline stage holds.

    A tied table stands on the first stage and again on the last.
    """
    share = model.num_layers // layout.pp
    held = {f"layer{i}" for i in range(stage * share, (stage + 1) * share)}
    if stage == 0:
        held |= {"table", "first"}
    if stage == layout.pp - 1:
        held |= {"last", "table" if model.tied_embeddings else "head"}
    return held


def lacking_params(rank: int, old: Layout, new: Layout, model: ModelSpec) -> float:
    """Return how many parameters of its new shard a rank did not hold before.

    Exact, up to one thing: slices are thought contiguous, [t/tp, (t+1)/tp) of every matrix.

    Args:
        rank: 0 to number of GPUs - 1; the same GPU before and after.
        old: layout before.
        new: layout after.
        model: whose parameters.
    """
    before, after = Place.of(rank, old), Place.of(rank, new)
    had, needs = names_on(before.stage, old, model), names_on(after.stage, new, model)
    kept = _overlap(before.slice, old.tp, after.slice, new.tp)
    total = 0.0
    for name, block in blocks(model).items():  # in a fixed order: sets have none
        if name in needs & had:
            total += block.sharded * (1 / new.tp - kept)
        elif name in needs:
            total += block.sharded / new.tp + block.replicated
    return total


def _overlap(old_slice: int, old_tp: int, new_slice: int, new_tp: int) -> float:
    """Common part of two slices of [0, 1), in whole units of 1/(old_tp*new_tp)."""
    low = max(old_slice * new_tp, new_slice * old_tp)
    high = min((old_slice + 1) * new_tp, (new_slice + 1) * old_tp)
    return max(0, high - low) / (old_tp * new_tp)
