"""Seconds of one layer, and of embedding, LM head and loss, for one micro-batch on one GPU.

Source: cost-model.md, gaps 1 to 4
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.cost.constants import PROFILES, Constants
from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs

ELEMENT_BYTES = 2
"""Bytes of a 16-bit weight, activation or gradient."""

WAVE_ELEMENTS = 0.5 * 108 * 128**2
"""Output elements lost in the last, half-filled wave of a matrix product: tiles of 128 x 128 on
108 multiprocessors (A100; ASSUMED for the others, which are alike)."""

FORWARD = 1 / 3
"""Part of the element-wise and attention traffic, and of launches, in the forward pass."""

FLASH_BACKWARD = 2.5
"""FLOPs of fused attention's backward pass over its forward pass: five products, not two."""


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Parts of a layer's seconds per micro-batch, each of shape [rows]."""

    compute_s: Floats
    """Forward and backward pass."""
    recompute_s: Floats
    """Forward pass computed again."""
    launch_s: Floats
    """What launching its kernels adds to them."""


def gemm_s(m: Floats, n: Floats, k: Floats, flop_per_s: Floats, c: Constants) -> Floats:
    """Return the mean seconds of a linear map's three products (forward and both gradients).

    The efficiency is continuous in the shape: every dimension costs its edge, every output its
    last wave.

    Args:
        m: tokens.
        n: outputs.
        k: inputs.
        flop_per_s: rate of a very large product.
        c: the constants.
    """
    mn, edge, wave = m * n, c.gemm_edge / 3, WAVE_ELEMENTS / 3
    sum_of_pairs = mn + (m + n) * k  # over m*n*k it is 1/m + 1/n + 1/k
    work = mn * k + edge * sum_of_pairs + wave * (m + n + k)
    return 2 * work / flop_per_s


def layer_time(x: Inputs, c: Constants) -> LayerTime:
    """Return the seconds of one layer and micro-batch."""
    hbm = x.hbm_bytes_per_s * c.hbm_efficiency
    linear = linears_s(x, c)
    attention_forward, attention = attention_s(x, c, hbm)
    elementwise = elementwise_s(x, c, hbm)
    compute = 3 * linear + attention + elementwise
    again = x.recompute_rest * (linear + FORWARD * elementwise)
    again = again + x.recompute_attention * attention_forward
    floor = launch_floor_s(x, c) * (1 + FORWARD * x.recompute_rest)
    busy = compute + again
    # Operations differ in size: some wait for their launch while others fill the GPU.
    total = np.cbrt(busy * busy * busy + floor * floor * floor)
    return LayerTime(compute_s=compute, recompute_s=again, launch_s=total - busy)


def launch_floor_s(x: Inputs, c: Constants) -> Floats:
    """Return the seconds that launching a layer's kernels takes in the row's software stack."""
    by_profile = np.array([c.launch_s[name] for name in PROFILES])
    return by_profile[x.profile.astype(np.intp)]


def linears_s(x: Inputs, c: Constants) -> Floats:
    """Return the seconds of one pass through a layer's matrices."""
    tokens, kv = x.tokens, 2 * x.hidden / x.num_heads * x.num_kv_heads
    qkv, inner = x.hidden + kv, (1 + x.is_gated) * x.ffn
    rate = x.matrix_flop_per_s * c.gemm_efficiency * x.linear_speedup
    share = 1 / x.tp
    return (
        gemm_s(tokens, qkv * share, x.hidden, rate, c)
        + gemm_s(tokens, x.hidden, x.hidden * share, rate, c)
        + gemm_s(tokens, inner * share, x.hidden, rate, c)
        + gemm_s(tokens, x.hidden, x.ffn * share, rate, c)
    )


def attention_s(x: Inputs, c: Constants, hbm: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of the attention core: the forward pass, and both passes."""
    scores = x.mbs * x.num_heads * x.seq * x.seq / (x.tp * x.cp)
    head = x.hidden / x.num_heads
    flops = 4 * scores * head
    fused = flops * (1 - 0.5 * x.is_causal) / (x.matrix_flop_per_s * c.flash_efficiency)
    edge = 1 + c.gemm_edge / 3 * (2 / x.seq + 1 / head)
    products = flops * edge / (x.matrix_flop_per_s * c.gemm_efficiency)
    moved = scores * (c.attention_bytes / hbm)
    forward = np.where(x.flash > 0, fused, products + FORWARD * moved)
    both = np.where(x.flash > 0, (1 + FLASH_BACKWARD) * fused, 3 * products + moved)
    return forward, both


def elementwise_s(x: Inputs, c: Constants, hbm: Floats) -> Floats:
    """Return the seconds of norms, dropout, residuals and activation function, both passes."""
    is_fused = x.profile == PROFILES.index("tuned")
    per_element = np.where(is_fused, c.elementwise_bytes, c.unfused_elementwise_bytes)
    # the activation function reads and writes its 16-bit inputs once forward, twice backward
    inner = (12 + 6 * x.is_gated) * x.ffn / x.tp
    return x.tokens * (x.hidden * per_element / x.norm_shards + inner) / hbm


def head_s(x: Inputs, c: Constants) -> Floats:
    """Return the seconds of LM head and loss per micro-batch, both passes, with their launches."""
    tokens, vocab = x.tokens, x.vocab / x.tp
    rate = x.matrix_flop_per_s * c.gemm_efficiency
    is_plain = (x.profile < PROFILES.index("tuned")) & (x.tp == 1)
    per_logit = np.where(is_plain, c.unsplit_loss_bytes, c.loss_bytes)
    moved = tokens * vocab * per_logit / (x.hbm_bytes_per_s * c.hbm_efficiency)
    products = 3 * gemm_s(tokens, vocab, x.hidden, rate, c)
    return products + moved + c.head_layers * launch_floor_s(x, c)
