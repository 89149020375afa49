"""What the improved cost model needs to know about each row, as arrays.

A row is one strategy of one model on one cluster. Fields of one entry hold for every row.

Source: cost-model.md, what the `improved` model must add
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cona.cost.constants import PROFILES
from cona.cost.gpus import Floats, gpu
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy

SELECTIVE = {"none": (0.0, 0.0), "selective": (1.0, 0.0), "full": (1.0, 1.0)}
"""Shares of the forward pass computed again under a recompute mode: attention core, the rest."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Rows as float arrays, each of shape [rows] or [1]; flags are 0 or 1."""

    num_layers: Floats
    hidden: Floats
    """Width of the residual stream, h."""
    num_heads: Floats
    num_kv_heads: Floats
    ffn: Floats
    """Inner width of the feed-forward block, f."""
    seq: Floats
    """Tokens per sample, s."""
    vocab: Floats
    """Padded vocabulary, V."""
    is_gated: Floats
    """SwiGLU: three feed-forward matrices and no biases."""
    has_dropout: Floats
    """Masks of the two residual dropouts are kept."""
    is_causal: Floats
    is_tied: Floats
    """The LM head shares the token embedding's weights."""
    dp: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    """Context-parallel degree."""
    virtual_stages: Floats
    mbs: Floats
    gbs: Floats
    zero_stage: Floats
    sequence_parallel: Floats
    recompute_attention: Floats
    """Share of the attention core that is computed again, 0 to 1."""
    recompute_rest: Floats
    """Share of the rest of a layer's forward pass that is computed again, 0 to 1."""
    overlap: Floats
    """Gradients are reduced during the backward pass."""
    logit_bytes: Floats
    """Bytes that the head and the loss keep of a logit."""
    flash: Floats
    """Fused attention, which moves no score matrix."""
    matrix_flop_per_s: Floats
    """Data-sheet rate of the tensor cores in 16 bits."""
    linear_speedup: Floats
    """Data-sheet rate of the linear layers' precision over that of 16 bits."""
    hbm_bytes_per_s: Floats
    """Data-sheet rate of the GPU's memory."""
    memory_bytes: Floats
    """Size of the GPU's memory."""
    num_gpus: Floats
    """GPUs in the cluster."""
    gpus_per_node: Floats
    intra_bytes_per_s: Floats
    """Link inside a node as one GPU sees it, bandwidth times efficiency."""
    inter_bytes_per_s: Floats
    intra_latency_s: Floats
    inter_latency_s: Floats
    profile: Floats
    """Index into PROFILES: the software stack."""

    @cached_property
    def tokens(self) -> Floats:
        """Tokens of a micro-batch on one GPU: b*s over the context-parallel degree."""
        return self.mbs * self.seq / self.cp

    @cached_property
    def num_microbatches(self) -> Floats:
        """m: micro-batches per pipeline and iteration."""
        return self.gbs / (self.dp * self.mbs)

    @cached_property
    def norm_shards(self) -> Floats:
        """GPUs that share norms, dropout and residuals: tp with sequence parallelism, else 1."""
        return 1 + (self.tp - 1) * self.sequence_parallel

    @cached_property
    def is_pipelined(self) -> NDArray[np.bool_]:
        """Whether there is more than one stage."""
        return self.pp > 1

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return max(len(getattr(self, f.name)) for f in fields(self))

    def rows(self, start: int, stop: int) -> Inputs:
        """Return rows ``start`` to ``stop`` as views."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return Inputs(**{n: c if len(c) == 1 else c[start:stop] for n, c in columns.items()})

    def chunks(self, size: int) -> Iterator[tuple[int, Inputs]]:
        """Yield (first row, rows) in pieces of at most ``size``."""
        for start in range(0, self.num_rows, size):
            yield start, self.rows(start, start + size)


LOGIT_BYTES = 4 + 4 + 2
"""fp32 logits, their gradient, and the 16-bit output of the head."""

FUSED_LOGIT_BYTES = 2 + 2
"""A fused loss keeps 16-bit logits and writes their gradient in 16 bits."""


def one(value: float) -> Floats:
    """Return a column that holds for every row, shape [1]."""
    return np.array([value], float)


def of_model(model: ModelSpec) -> dict[str, Floats]:
    """Return the columns of a model."""
    facts = {
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "ffn": model.ffn_size,
        "seq": model.seq_length,
        "vocab": model.padded_vocab_size,
        "is_gated": model.family == "llama",
        "has_dropout": model.dropout > 0,
        "is_causal": model.is_causal,
        "is_tied": model.tied_embeddings,
    }
    return {name: one(value) for name, value in facts.items()}


def of_cluster(cluster: ClusterSpec, precision: str = "bf16") -> dict[str, Floats]:
    """Return the columns of a cluster; raises ConfigError for an unknown GPU type.

    Args:
        cluster: links, sizes and the GPU type, whose peaks come from its data sheet.
        precision: of the linear layers; fp8 where the GPU has none runs in 16 bits.
    """
    sheet, intra, inter = gpu(cluster.gpu).sheet, cluster.intra_node, cluster.inter_node
    is_fp8 = precision == "fp8" and sheet.fp8_tflops is not None
    facts = {
        "matrix_flop_per_s": sheet.bf16_tflops * 1e12,
        "linear_speedup": (sheet.fp8_tflops or 0.0) / sheet.bf16_tflops if is_fp8 else 1.0,
        "hbm_bytes_per_s": sheet.hbm_gb_s * 1e9,
        "memory_bytes": cluster.gpu_memory_gb * 1e9,
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "intra_bytes_per_s": intra.bandwidth_gb_s * intra.efficiency * 1e9,
        "inter_bytes_per_s": inter.bandwidth_gb_s * inter.efficiency * 1e9,
        "intra_latency_s": intra.latency_us * 1e-6,
        "inter_latency_s": inter.latency_us * 1e-6,
    }
    return {name: one(value) for name, value in facts.items()}


def of_strategies(strategies: Sequence[Strategy]) -> dict[str, Floats]:
    """Return the columns of strategies, each of shape [strategies]."""
    names = ("dp", "tp", "pp", "mbs", "gbs")
    columns = {n: np.array([getattr(s, n) for s in strategies], float) for n in names}
    used = [s.techniques for s in strategies]
    again = np.array([SELECTIVE[t.recompute] for t in used], float).reshape(-1, 2)
    return columns | {
        "cp": np.array([t.context_parallel for t in used], float),
        "virtual_stages": np.array([t.virtual_stages for t in used], float),
        "zero_stage": np.array([t.zero_stage for t in used], float),
        "sequence_parallel": np.array([t.sequence_parallel for t in used], float),
        "recompute_attention": again[:, 0],
        "recompute_rest": again[:, 1],
    }


def of_stack(
    profile: str = "tuned", *, flash: bool = True, overlap: bool = True
) -> dict[str, Floats]:
    """Return the columns of a software stack.

    Args:
        profile: one of PROFILES.
        flash: fused attention.
        overlap: gradients are reduced during the backward pass.
    """
    index = PROFILES.index(profile)
    facts = {"profile": index, "flash": flash, "overlap": overlap, "logit_bytes": LOGIT_BYTES}
    return {name: one(value) for name, value in facts.items()}


def inputs(
    model: ModelSpec, cluster: ClusterSpec, strategies: Sequence[Strategy], profile: str = "tuned"
) -> Inputs:
    """Return the inputs of strategies of one model on one cluster, a row each."""
    stack = of_stack(profile, flash=profile == "tuned")
    columns = of_model(model) | of_cluster(cluster) | of_strategies(strategies) | stack
    return Inputs(**columns)
