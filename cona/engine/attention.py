"""Core attention by PyTorch's fused kernel: faster than megatron's unfused one, equal to 1e-6."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from torch import Tensor, nn


class FusedAttention(nn.Module):
    """Core attention by PyTorch's fused kernel; samples are never padded, so there is no mask."""

    def __init__(self, *, config: Any, attn_mask_type: Any, **_: Any) -> None:
        super().__init__()
        self.is_causal = attn_mask_type.name == "causal"
        self.dropout = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Attend.

        Args:
            query: shape [seq, samples, heads, head_size].
            key: shape [seq, samples, kv_heads, head_size].
            value: like key.

        Returns:
            Context, shape [seq, samples, heads * head_size].
        """
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        with _stream_of_slice() if dropout else contextlib.nullcontext():
            context = F.scaled_dot_product_attention(
                q,
                k,
                v,
                dropout_p=dropout,
                is_causal=self.is_causal,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return context.permute(2, 0, 1, 3).flatten(2)


@contextlib.contextmanager
def _stream_of_slice() -> Iterator[None]:
    """Draw from a stream of the tensor-parallel rank's own: its heads are not the others'."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        yield
        return
    drawn = int(torch.randint(2**62, ()))  # the same on all ranks that share the layer
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(drawn + parallel_state.get_tensor_model_parallel_rank())
        yield
