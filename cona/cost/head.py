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
        vocab = self.model.padded_vocab_size / columns.tp
        hidden = np.full_like(vocab, self.model.hidden_size)
        gemms_s = 3 * layer.linear_s(hidden, vocab)
        return columns.num_microbatches * (gemms_s + self._loss_s(layer.tokens * vocab))

    def _loss_s(self, logits: Floats) -> Floats:
        """Cross-entropy: each way, one pass that reads fp16 and writes fp32, or the reverse.

        ASSUMED: FLOPs per logit as Calculon's softmax, and a single pass over the logits.
        """
        num_bytes = logits * (ELEMENT_BYTES + LOGIT_BYTES)
        return self.gpu.vector_s(5 * logits, num_bytes) + self.gpu.vector_s(8 * logits, num_bytes)
