"""From a ModelSpec to a megatron-core module whose forward gives the loss of every token.

Three things differ from megatron's stock modules, all through its own extension points: the core
attention (``attention.py``), the loss (``losses.py``), and that nothing is sent while a model is
built, because its weights come from elsewhere.
"""

from __future__ import annotations

import dataclasses
import warnings
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.bert.bert_layer_specs import (
    bert_layer_local_spec,
    get_bert_layer_with_transformer_engine_spec,
)
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from cona.engine import cpu
from cona.engine.attention import FusedAttention
from cona.engine.losses import losses_of
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import Layout, Recompute

INIT_STD = 0.02
"""ASSUMED: standard deviation of initial weights (GPT-2 and BERT use it)."""


class CausalModel(GPTModel):
    """GPT and Llama: predicts the next token."""

    def __init__(self, spec: ModelSpec, config: Any, *, is_fused: bool, **ends: bool) -> None:
        super().__init__(
            config,
            _causal_layer(config, is_fused),
            vocab_size=spec.padded_vocab_size,
            max_sequence_length=spec.seq_length,
            parallel_output=True,
            **ends,
            share_embeddings_and_output_weights=spec.tied_embeddings,
            position_embedding_type="rope" if spec.family == "llama" else "learned_absolute",
            rotary_base=spec.rope_theta,
        )
        self.num_known_tokens = spec.vocab_size

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Megatron's hook for the loss: without the padded vocabulary."""
        return losses_of(logits, labels, self.num_known_tokens)

    def setup_embeddings_and_output_layer(self) -> None:
        """Megatron's hook for tied embeddings: only marks them, weights come from elsewhere."""
        _mark_tied_embedding(self)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every target in nats; all shapes [samples, seq].

        Before the last pipeline stage it is the stage's output, shape [seq, samples, hidden].
        """
        # One row of positions serves all samples: the embedding broadcasts it.
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self(tokens, positions, None, labels=labels)


class MaskedModel(BertModel):
    """BERT without its binary head: predicts masked tokens."""

    def __init__(self, spec: ModelSpec, config: Any, *, is_fused: bool, **ends: bool) -> None:
        super().__init__(
            config,
            num_tokentypes=2,
            transformer_layer_spec=_masked_layer(is_fused),
            parallel_output=True,
            **ends,
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
        return losses_of(logits, labels, self.num_known_tokens)

    def setup_embeddings_and_output_layer(self) -> None:
        """Megatron's hook for tied embeddings: only marks them, weights come from elsewhere."""
        _mark_tied_embedding(self)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every target in nats, 0 if not masked; all shapes [samples, seq].

        Before the last pipeline stage it is the stage's output, shape [seq, samples, hidden].
        """
        row = tokens[:1]  # the mask and the token types are the same for all samples: broadcast
        output = self(tokens, torch.ones_like(row), torch.zeros_like(row), lm_labels=labels)
        return output[0] if self.post_process else output


LanguageModel = CausalModel | MaskedModel


def _mark_tied_embedding(model: Any) -> None:
    """Mark both copies of an embedding that the first and the last stage share."""
    if model.share_embeddings_and_output_weights and not (model.pre_process and model.post_process):
        model.shared_embedding_or_output_weight().shared_embedding = True


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
    return initial_model(spec, seed)


def initial_model(spec: ModelSpec, seed: int) -> LanguageModel:
    """Build a whole model with seeded initial weights, on the CPU, in float32.

    Megatron's groups must be those of a layout without tensor or pipeline parallelism.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return _model(spec, _config(spec), is_fused=False)


def has_transformer_engine() -> bool:
    """Return whether layers can be Transformer Engine's fused ones: it is installed, on CUDA."""
    return torch.cuda.is_available() and find_spec("transformer_engine") is not None


def build_stage(
    spec: ModelSpec,
    layout: Layout,
    *,
    dtype: torch.dtype,
    recompute: Recompute,
    sequence_parallel: bool = False,
) -> LanguageModel:
    """Build this rank's part of a model; its parameters have no storage yet (meta device).

    Args:
        spec: the model.
        layout: whose process groups megatron uses now.
        dtype: of the parameters.
        recompute: which activations the backward pass computes again.
        sequence_parallel: shard norms and dropout over tp; needs Transformer Engine's layers.
    """
    is_fused = has_transformer_engine()
    config = _config(
        spec,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        batch_p2p_sync=torch.cuda.is_available(),
        calculate_per_token_loss=True,  # the loss is divided by the batch's tokens already
        perform_initialization=False,
        sequence_parallel=sequence_parallel and layout.tp > 1,
        **(_FUSIONS if is_fused else {}),
        **_RECOMPUTE[recompute],
    )
    ends = {
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
    }
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _model(spec, config, is_fused=is_fused, **ends)


_FUSIONS = {"bias_activation_fusion": True, "bias_dropout_fusion": True}
"""What Transformer Engine's layers are used with."""

_RECOMPUTE: dict[Recompute, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


def _model(spec: ModelSpec, config: Any, *, is_fused: bool, **ends: bool) -> LanguageModel:
    family = CausalModel if spec.is_causal else MaskedModel
    return family(spec, config, is_fused=is_fused, **ends)


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


def _config(spec: ModelSpec, **parallel: Any) -> Any:
    is_llama = spec.family == "llama"
    settings = {
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_query_groups": spec.num_kv_heads,
        "ffn_hidden_size": spec.ffn_size,
        "normalization": "RMSNorm" if is_llama else "LayerNorm",
        "layernorm_epsilon": spec.norm_eps,
        "gated_linear_unit": is_llama,
        "activation_func": F.silu if is_llama else F.gelu,
        "add_bias_linear": not is_llama,
        "hidden_dropout": spec.dropout,
        "attention_dropout": spec.dropout,
        "init_method_std": INIT_STD,
        "use_cpu_initialization": True,
        # Every fusion needs Apex, Transformer Engine or a compiler.
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
    return TransformerConfig(**(settings | parallel))


def _causal_layer(config: Any, is_fused: bool) -> Any:
    if is_fused:
        return get_gpt_layer_with_transformer_engine_spec()
    return _with_fused_attention(get_gpt_layer_local_spec(normalization=config.normalization))


def _masked_layer(is_fused: bool) -> Any:
    if is_fused:
        return get_bert_layer_with_transformer_engine_spec()
    return _with_fused_attention(bert_layer_local_spec)


def _with_fused_attention(layer: Any) -> Any:
    """Return a copy of a layer specification whose core attention is ``FusedAttention``."""
    attention = layer.submodules.self_attention
    parts = dataclasses.replace(attention.submodules, core_attention=FusedAttention)
    fused = ModuleSpec(module=attention.module, params=attention.params, submodules=parts)
    submodules = dataclasses.replace(layer.submodules, self_attention=fused)
    return ModuleSpec(module=layer.module, params=layer.params, submodules=submodules)
