"""Which parameters a GPU holds on the first and the last pipeline stage; arrays over rows.

Source: cost-model.md, gaps 1, 3 and 7. Exact up to norms, biases and BERT's small extra head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Layers and parameters of one GPU, each of shape [rows] or [1]."""

    num_layers: Floats
    """Layers of the largest stage."""
    layer_params: Floats
    """Parameters of one layer."""
    table_params: Floats
    """Parameters of the token embedding, and of the LM head."""
    positions: Floats
    """Parameters of learned positions, on the first stage only."""
    first: Floats
    """Parameters of the first stage, which also holds the embedding."""
    last: Floats
    """Parameters of the last stage, which also holds the LM head."""

    @property
    def largest(self) -> Floats:
        """Parameters of the stage with the most."""
        return np.maximum(self.first, self.last)

    @classmethod
    def of(cls, x: Inputs) -> Stages:
        """Return the parameters that each row's tp and pp leave on one GPU."""
        qkv = x.hidden * (1 + 2 * x.num_kv_heads / x.num_heads)
        matrices = x.hidden * (qkv + x.hidden + (2 + x.is_gated) * x.ffn) / x.tp
        layer = matrices + (2 + 4 * (1 - x.is_gated)) * x.hidden
        num_layers = np.ceil(x.num_layers / x.pp)
        table = x.vocab * x.hidden / x.tp
        positions = (1 - x.is_gated) * x.seq * x.hidden
        first = num_layers * layer + table + positions
        alone = first + (1 - x.is_tied) * table
        return cls(
            num_layers=num_layers,
            layer_params=layer,
            table_params=table,
            positions=positions,
            first=np.where(x.pp > 1, first, alone),
            last=np.where(x.pp > 1, num_layers * layer + table, alone),
        )
