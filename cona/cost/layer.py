"""One transformer layer as Calculon counts it: operations, their FLOPs and their bytes.

Source: cost-model.md, Calculon's model. Every layer is a GPT layer there: full-width keys and
values, a feed-forward block of two matrices, LayerNorm, GeLU, unfused attention, two-byte elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cona.cost.gpus import Floats, Gpu
from cona.specs import ModelSpec
from cona.strategy import Recompute

ELEMENT_BYTES = 2
"""E: bytes of a weight, an activation or a gradient (fp16)."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer, one micro-batch, one tensor-parallel rank; arrays over strategies."""

    model: ModelSpec
    gpu: Gpu
    mbs: Floats
    """b: samples of a micro-batch, shape [strategies]."""
    tp: Floats
    """t: tensor-parallel degree, shape [strategies]."""

    @cached_property
    def tokens(self) -> Floats:
        """b*s: tokens of a micro-batch."""
        return self.mbs * self.model.seq_length

    @cached_property
    def hidden(self) -> Floats:
        """A = b*s*h: elements of the residual stream, which tp does not divide."""
        return self.tokens * self.model.hidden_size

    @cached_property
    def inner(self) -> Floats:
        """G = b*s*f/t: elements inside the feed-forward block."""
        return self.tokens * self.model.ffn_size / self.tp

    @cached_property
    def score_heads(self) -> Floats:
        """n_b = floor(b*a/t): attention matrices."""
        return np.floor(self.mbs * self.model.num_heads / self.tp)

    @cached_property
    def scores(self) -> Floats:
        """N = n_b*s^2: elements of all attention matrices."""
        return self.score_heads * self.model.seq_length**2

    @cached_property
    def matrices(self) -> tuple[tuple[Floats, Floats], ...]:
        """Inputs and outputs per token of q, k, v, projection and the two MLP matrices."""
        h = np.full_like(self.tp, self.model.hidden_size)
        attention = self.model.num_heads * self.model.head_size / self.tp
        inner = self.model.ffn_size / self.tp
        return ((h, attention),) * 3 + ((attention, h), (h, inner), (inner, h))

    @cached_property
    def weights(self) -> tuple[Floats, ...]:
        """Parameters of each weight tensor: the matrices and two LayerNorms (no biases)."""
        norm = np.full_like(self.tp, 2.0 * self.model.hidden_size)
        return (*(n * k for n, k in self.matrices), norm, norm)

    @property
    def num_weights(self) -> Floats:
        """W: parameters of the layer on one rank."""
        return sum(self.weights, np.zeros_like(self.tp))

    def linear_s(self, inputs: Floats, outputs: Floats) -> Floats:
        """Return the seconds of one GEMM of a linear map; its three passes cost the same."""
        elements = self.tokens * inputs + self.tokens * outputs + inputs * outputs
        return self.gpu.gemm_s(2 * self.tokens * inputs * outputs, elements * ELEMENT_BYTES)

    @cached_property
    def linears_s(self) -> Floats:
        """Seconds of one pass (forward, agrad or wgrad) through the six matrices."""
        return sum((self.linear_s(n, k) for n, k in self.matrices), np.zeros_like(self.tp))

    def products_s(self, passes: int) -> Floats:
        """Return the seconds of QK^T and of attention times V, at ``passes`` times the FLOPs."""
        head = self.model.head_size
        flops = passes * 2 * self.scores * head
        elements = 2 * self.score_heads * self.model.seq_length * head + self.scores
        return 2 * self.gpu.gemm_s(flops, elements * ELEMENT_BYTES)

    def _elementwise_s(self, elements: Floats, flops: float, num_bytes: float) -> Floats:
        return self.gpu.vector_s(elements * flops, elements * num_bytes)

    def _norms_s(self, flops: float) -> Floats:
        num_bytes = (2 * self.hidden + 2 * self.model.hidden_size) * ELEMENT_BYTES
        return 2 * self.gpu.vector_s(self.hidden * flops, num_bytes)

    @cached_property
    def _dropouts_s(self) -> Floats:
        """Attention dropout and the two of the residual branches; a mask of a byte per element."""
        two_and_mask = 2 * ELEMENT_BYTES + 1
        residual = self._elementwise_s(self.hidden, 1, two_and_mask)
        return self._elementwise_s(self.scores, 1, two_and_mask) + 2 * residual

    @cached_property
    def forward_s(self) -> Floats:
        """Seconds of the forward pass."""
        return (
            self.linears_s
            + self.products_s(1)
            + self._elementwise_s(self.scores, 5, 2 * ELEMENT_BYTES)  # softmax
            + self._norms_s(9)
            + self._elementwise_s(self.inner, 8, 2 * ELEMENT_BYTES)  # GeLU
            + self._dropouts_s
            + 2 * self._elementwise_s(self.hidden, 1, 3 * ELEMENT_BYTES)  # residual sums
        )

    @cached_property
    def input_gradient_s(self) -> Floats:
        """Seconds of the gradients with respect to activations (agrad)."""
        pair = self._elementwise_s(self.hidden, 2, 3 * ELEMENT_BYTES)
        return (
            self.linears_s
            + self.products_s(2)
            + self._elementwise_s(self.scores, 8, 2 * ELEMENT_BYTES)  # softmax
            + self._norms_s(14)
            + self._elementwise_s(self.inner, 13, 2 * ELEMENT_BYTES)  # GeLU
            + self._dropouts_s
            + 2 * pair  # residual sums
            + 2 * pair  # forks into a residual and a branch
            + self._elementwise_s(self.hidden, 3, 4 * ELEMENT_BYTES)  # fork into q, k, v
        )

    @cached_property
    def weight_gradient_s(self) -> Floats:
        """Seconds of the gradients with respect to weights (wgrad)."""
        return self.linears_s + self._norms_s(7)

    @property
    def backward_s(self) -> Floats:
        """Seconds of both gradients."""
        return self.input_gradient_s + self.weight_gradient_s

    def recompute_s(self, mode: Recompute) -> Floats:
        """Return the seconds of the forward work that the backward pass repeats.

        Args:
            mode: ``full`` repeats all; ``selective`` the scores, their softmax and their dropout.
        """
        if mode == "full":
            return self.forward_s
        if mode == "none":
            return np.zeros_like(self.tp)
        softmax_s = self._elementwise_s(self.scores, 5, 2 * ELEMENT_BYTES)
        dropout_s = self._elementwise_s(self.scores, 1, 2 * ELEMENT_BYTES + 1)
        return self.products_s(1) / 2 + softmax_s + dropout_s

    def optimizer_s(self, shards: Floats) -> Floats:
        """Return the seconds of Adam's step over the layer's tensors, each cut into ``shards``."""
        steps = (self._elementwise_s(w / shards, 11, 12) for w in self.weights)
        return sum(steps, np.zeros_like(self.tp))
