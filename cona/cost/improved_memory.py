"""M(s) of the improved model: bytes on the fullest GPU, with a named breakdown.

Source: cost-model.md, gap 7; activations: Korthikanti et al. 2022, table 2, for any layer.
"""

from __future__ import annotations

import numpy as np

from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs
from cona.cost.stages import Stages

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "reserve")
"""Names of the parts of M."""

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
"""16-bit weights; fp32 gradients; fp32 master weights and two Adam moments, per parameter."""

SHARDED_GRADIENT_BYTES = 2
"""ZeRO-3 keeps 16-bit gradients (DeepSpeed), or fp32 ones but no 16-bit weights (FSDP)."""

RESERVE_BYTES = 2e9
"""ASSUMED: CUDA context, NCCL buffers and workspaces."""

FRAGMENTATION = 0.03
"""ASSUMED: share of the allocated bytes that fragmentation wastes."""


def memory_parts(x: Inputs, stages: Stages) -> dict[str, Floats]:
    """Return the parts of M in bytes, each of shape [rows]; they sum to M.

    The fullest GPU is on the first stage (most micro-batches in flight) or the last (logits).
    """
    logits = _logits_bytes(x)
    kept, working = _kept(x, stages)
    first_kept, last_kept = _in_flight(x, 0) * kept + working, kept + working
    state = _state_bytes(x)
    per_param = sum(state.values(), np.zeros(1))
    first = per_param * stages.first + first_kept
    last = per_param * stages.last + last_kept + logits
    is_last = ~x.is_pipelined | (last > first)
    num_params = np.where(is_last, stages.last, stages.first)
    parts = {name: size * num_params for name, size in state.items()}
    parts["activations"] = np.where(is_last, last_kept, first_kept)
    parts["logits"] = np.where(is_last, logits, 0.0)
    used = sum(parts.values(), np.zeros(1))
    return parts | {"reserve": RESERVE_BYTES + FRAGMENTATION * used}


def stage_bytes(x: Inputs, stages: Stages, stage: int) -> Floats:
    """Return M of one pipeline stage in bytes, shape [rows]; M itself is the fullest stage's.

    Args:
        x: the rows.
        stages: their parameters.
        stage: 0 to pp - 1.
    """
    is_last = stage == x.pp - 1
    inner = stages.num_layers * stages.layer_params
    num_params = np.where(is_last, stages.last, stages.first if stage == 0 else inner)
    kept, working = _kept(x, stages)
    in_flight = np.where(is_last, 1.0, _in_flight(x, stage))
    used = sum(_state_bytes(x).values(), np.zeros(1)) * num_params + in_flight * kept + working
    used = used + np.where(is_last, _logits_bytes(x), 0.0)
    return RESERVE_BYTES + (1 + FRAGMENTATION) * used


def _state_bytes(x: Inputs) -> dict[str, Floats]:
    """Bytes per parameter: ZeRO shards the optimizer from stage 1, gradients from 2, weights."""
    share, stage = 1 / (x.dp * x.cp), x.zero_stage
    return {
        "weights": WEIGHT_BYTES * np.where(stage > 2, share, 1.0),
        "gradients": np.where(stage > 2, SHARDED_GRADIENT_BYTES, GRADIENT_BYTES)
        * np.where(stage > 1, share, 1.0),
        "optimizer": OPTIMIZER_BYTES * np.where(stage > 0, share, 1.0),
    }


def _in_flight(x: Inputs, stage: int) -> Floats:
    """Micro-batches whose activations a stage keeps; interleaving starts more before a backward."""
    plain = np.minimum(x.pp - stage, x.num_microbatches)
    early = (x.pp - 1) / (x.pp * x.virtual_stages)
    in_flight: Floats = plain * (1 + early * (x.virtual_stages > 1))
    return in_flight


def _kept(x: Inputs, stages: Stages) -> tuple[Floats, Floats]:
    """Bytes of activations that a stage keeps of one micro-batch, and of working buffers.

    A layer that is computed again, or gathered by ZeRO-3, needs its whole size for a moment.
    """
    layer, again = activation_bytes(x), x.recompute_rest
    kept = (1 - again) * layer + again * _input_bytes(x)
    gathered = 2 * WEIGHT_BYTES * stages.layer_params * (x.zero_stage > 2)
    working = layer * (again > 0) + gathered
    return stages.num_layers * kept, working


def _logits_bytes(x: Inputs) -> Floats:
    return x.tokens * x.vocab / x.tp * x.logit_bytes


def _input_bytes(x: Inputs) -> Floats:
    """Bytes of a layer's input for one micro-batch on one GPU."""
    return 2 * x.tokens * x.hidden / x.norm_shards


def activation_bytes(x: Inputs) -> Floats:
    """Return the bytes that one layer keeps for the backward pass of one micro-batch.

    Not divided by tp: inputs of both norms and of qkv and the feed-forward block (8 B per
    element), two masks where there is dropout (2 B). Divided: q, k, v, the projection's
    input, the inner activations, and without fused attention 5 B per score unless computed again.
    """
    whole = (8 + 2 * x.has_dropout) * x.hidden / x.norm_shards
    inner = (4 + 2 * x.is_gated) * x.ffn
    split = (4 + 4 * x.num_kv_heads / x.num_heads) * x.hidden + inner
    is_kept = (x.flash == 0) * (1 - x.recompute_attention)
    scores = 5 * x.num_heads * x.seq * is_kept
    return x.tokens * (whole + (split + scores) / x.tp)
