"""From a ModelSpec to a megatron-core module whose forward gives the loss of every token.

Two things differ from megatron's stock modules, both through its own extension points. The core
attention is PyTorch's fused kernel (faster than megatron's unfused one, equal to 1e-6), and the
loss leaves out the padded part of the vocabulary, so that it does not depend on the padding.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cona.engine import cpu
from cona.errors import ConfigError
from cona.specs import ModelSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are optional and not wanted here
    from megatron.core import parallel_state
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

INIT_STD = 0.02
"""ASSUMED: standard deviation of initial weights (GPT-2 and BERT use it)."""

IGNORED = -100
"""Label of a target that does not count."""


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
        context = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.is_causal,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return context.permute(2, 0, 1, 3).flatten(2)


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


class CausalModel(GPTModel):
    """GPT and Llama: predicts the next token."""

    def __init__(self, spec: ModelSpec, config: Any) -> None:
        layer = get_gpt_layer_local_spec(normalization=config.normalization)
        super().__init__(
            config,
            _with_fused_attention(layer),
            vocab_size=spec.padded_vocab_size,
            max_sequence_length=spec.seq_length,
            share_embeddings_and_output_weights=spec.tied_embeddings,
            position_embedding_type="rope" if spec.family == "llama" else "learned_absolute",
            rotary_base=spec.rope_theta,
        )
        self.num_known_tokens = spec.vocab_size

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Megatron's hook for the loss: without the padded vocabulary."""
        return token_losses(logits, labels, self.num_known_tokens)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every target in nats; all shapes [samples, seq]."""
        # One row of positions serves all samples: the embedding broadcasts it.
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self(tokens, positions, None, labels=labels)


class MaskedModel(BertModel):
    """BERT without its binary head: predicts masked tokens."""

    def __init__(self, spec: ModelSpec, config: Any) -> None:
        super().__init__(
            config,
            num_tokentypes=2,
            transformer_layer_spec=_with_fused_attention(bert_layer_local_spec),
            vocab_size=spec.padded_vocab_size,
            max_sequence_length=spec.seq_length,
            share_embeddings_and_output_weights=spec.tied_embeddings,
            add_binary_head=False,
        )
        self.num_known_tokens = spec.vocab_size

    def _sanity_check_attention_and_get_attn_mask_dimension(self) -> str:
        # Megatron's own check asks Transformer Engine's version of any attention but its own.
        return "b1ss"

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Megatron's hook for the loss: without the padded vocabulary."""
        return token_losses(logits, labels, self.num_known_tokens)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every target in nats, 0 if not masked; all shapes [samples, seq]."""
        row = tokens[:1]  # the mask and the token types are the same for all samples: broadcast
        loss, _ = self(tokens, torch.ones_like(row), torch.zeros_like(row), lm_labels=labels)
        return loss


LanguageModel = CausalModel | MaskedModel


def build_model(spec: ModelSpec, seed: int) -> LanguageModel:
    """Build a model with seeded initial weights, on the CPU, in float32.

    Args:
        spec: the model.
        seed: of the initial weights; the default random generator is left as it was.

    Raises:
        ConfigError: this process already belongs to a group of several processes.
    """
    cpu.install()
    join_group_of_one()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        config = _config(spec)
        return CausalModel(spec, config) if spec.is_causal else MaskedModel(spec, config)


def join_group_of_one() -> None:
    """Initialise megatron's process groups for one process, once; nothing listens on a port."""
    if not torch.distributed.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    if (size := torch.distributed.get_world_size()) != 1:
        raise ConfigError(f"{size} processes run together, but this engine runs in exactly 1")
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()


def _config(spec: ModelSpec) -> Any:
    is_llama = spec.family == "llama"
    return TransformerConfig(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_heads,
        num_query_groups=spec.num_kv_heads,
        ffn_hidden_size=spec.ffn_size,
        normalization="RMSNorm" if is_llama else "LayerNorm",
        layernorm_epsilon=spec.norm_eps,
        gated_linear_unit=is_llama,
        activation_func=F.silu if is_llama else F.gelu,
        add_bias_linear=not is_llama,
        hidden_dropout=spec.dropout,
        attention_dropout=spec.dropout,
        init_method_std=INIT_STD,
        use_cpu_initialization=True,
        # Every fusion needs Apex, Transformer Engine or a compiler.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def _with_fused_attention(layer: Any) -> Any:
    """Return a copy of a layer specification whose core attention is ``FusedAttention``."""
    attention = layer.submodules.self_attention
    parts = dataclasses.replace(attention.submodules, core_attention=FusedAttention)
    fused = ModuleSpec(module=attention.module, params=attention.params, submodules=parts)
    submodules = dataclasses.replace(layer.submodules, self_attention=fused)
    return ModuleSpec(module=layer.module, params=layer.params, submodules=submodules)
