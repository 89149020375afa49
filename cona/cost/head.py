"""Calculon's equations plus the LM head, which they leave out: 20 % of Llama-3.2-1B's FLOPs.

Source: cost-model.md, gap 1. Provisional: embedding look-up, the head's share of gradient
reduction, optimizer and tensor-parallel communication are still left out.
"""

from __future__ import annotations

import numpy as np

from cona.cost.base import Columns
from cona.cost.calculon import Calculon
from cona.cost.gpus import Floats
from cona.cost.layer import ELEMENT_BYTES, Layer

LOGIT_BYTES = 4
"""Bytes of a logit inside the loss, which is computed in fp32."""


class CalculonWithHead(Calculon):
    """Calculon with a term that the last stage pays once per micro-batch, outside the bubble."""

    name = "calculon+head"

    def head_s(self, layer: Layer, columns: Columns) -> Floats:
        """Return the seconds per iteration of the LM head's three GEMMs and of the loss.

        Args:
            layer: the strategies' layer, for its micro-batch, width and GPU.
            columns: the strategies.
        """
        one_s = self.head_forward_s(layer) + self.head_backward_s(layer)
        return columns.num_microbatches * one_s

    def head_forward_s(self, layer: Layer) -> Floats:
        """Return the seconds of one micro-batch's logits and loss.

        ASSUMED: FLOPs per logit as Calculon's softmax, and a single pass over the logits each way,
        which reads fp16 and writes fp32, or the reverse.
        """
        return self._product_s(layer) + self._loss_s(layer, 5)

    def head_backward_s(self, layer: Layer) -> Floats:
        """Return the seconds of one micro-batch's gradients of loss, logits and weights."""
        return 2 * self._product_s(layer) + self._loss_s(layer, 8)

    def _product_s(self, layer: Layer) -> Floats:
        vocab = self.model.padded_vocab_size / layer.tp
        return layer.linear_s(np.full_like(vocab, self.model.hidden_size), vocab)

    def _loss_s(self, layer: Layer, flops: float) -> Floats:
        logits = layer.tokens * (self.model.padded_vocab_size / layer.tp)
        return self.gpu.vector_s(flops * logits, logits * (ELEMENT_BYTES + LOGIT_BYTES))
