"""The loss of every token, whole or with the vocabulary split over tensor-parallel ranks.

It leaves out the padded part of the vocabulary, so that it does not depend on the padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

IGNORED = -100
"""Label of a target that does not count."""


def token_losses(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """Return the cross entropy of every target in nats; 0 where the label is ``IGNORED``.

    Args:
        logits: shape [seq, samples, padded vocabulary].
        labels: shape [samples, seq].
        vocab_size: tokens that exist; logits beyond it count as -infinity.

    Returns:
        Losses, shape [samples, seq].
    """
    known = logits.flatten(0, 1)[:, :vocab_size]
    targets = labels.t().flatten()
    losses = F.cross_entropy(known, targets, reduction="none", ignore_index=IGNORED)
    return losses.view(logits.shape[:2]).t()


def vocab_parallel_losses(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """Return what ``token_losses`` returns where every rank holds a slice of the vocabulary.

    Args:
        logits: shape [seq, samples, padded vocabulary / tp], this rank's slice.
        labels: shape [samples, seq], the same on all tensor-parallel ranks.
        vocab_size: tokens that exist; logits beyond it count as -infinity.

    Returns:
        Losses, shape [samples, seq], the same on all tensor-parallel ranks.
    """
    width = logits.shape[-1]
    num_known = vocab_size - parallel_state.get_tensor_model_parallel_rank() * width
    padding = torch.arange(width, device=logits.device) >= num_known
    counts = labels.t() != IGNORED
    targets = labels.t().where(counts, torch.zeros_like(labels.t())).contiguous()
    losses = vocab_parallel_cross_entropy(logits.masked_fill(padding, -torch.inf), targets)
    return (losses * counts).t()


def losses_of(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """Return the loss of every target under the layout in force, in float32; see above."""
    is_split = parallel_state.get_tensor_model_parallel_world_size() > 1
    function = vocab_parallel_losses if is_split else token_losses
    return function(logits.float(), labels, vocab_size)
