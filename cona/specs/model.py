"""Models: their shape, and how they are optimised."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cona.specs.base import Count, Fraction, Name, NonNegative, Positive, Spec

MOST_LAYERS = 2**12
"""Transformer layers: blocks and stages are counted one by one."""

NOT_MODELS = ("figures", "logs", "mlflow.lock", "report", "report.html", "tables")
"""Names in a tier's folder beside its models, or near enough to be taken for them."""


class TrainingSpec(Spec):
    """How a model is optimised: AdamW and the two ends of its learning-rate schedule."""

    base_lr: Positive
    """Peak learning rate at the base global batch size."""
    min_lr: NonNegative
    """Learning rate at the end of the decay."""
    decay_tokens: Count
    """Tokens over which the cosine decays; a tier may replace it."""
    warmup_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.01
    """Linear warm-up, as a fraction of the decay tokens."""
    weight_decay: NonNegative = 0.01
    """AdamW weight decay of matrices; biases and norms are not decayed."""
    adam_beta1: Fraction = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of Adam's second moment."""
    adam_eps: Positive = 1e-8
    """Adam's epsilon."""
    clip_grad: Positive = 1.0
    """Largest global gradient norm; the statistics see the gradient before clipping."""


class ModelSpec(Spec):
    """A transformer language model of one of the paper's three families."""

    name: Name
    """Name on the command line and in results."""
    description: str
    """One line for `cona models`."""
    family: Literal["gpt", "bert", "llama"]
    """gpt: learned positions, LayerNorm, GeLU; llama: RoPE, RMSNorm, SwiGLU, GQA; bert: encoder."""
    num_layers: Annotated[Count, Field(le=MOST_LAYERS)]
    """Transformer layers."""
    hidden_size: Count
    """Width of the residual stream, h."""
    num_heads: Count
    """Attention heads, a."""
    num_kv_heads: Count
    """Key/value heads (equal to num_heads without grouped-query attention)."""
    ffn_size: Count
    """Inner width of the feed-forward block, f."""
    vocab_size: Count
    """Tokens that the tokenizer knows."""
    seq_length: Count
    """Tokens per sample, s."""
    tp_max: Count = 8
    """Largest tensor-parallel degree: fixes the padded vocabulary for all layouts."""
    tied_embeddings: bool = True
    """The LM head shares the token embedding's weights."""
    norm_eps: Positive = 1e-5
    """Epsilon of the normalisation layers."""
    rope_theta: Positive = 10000.0
    """Base of the rotary position embedding (llama)."""
    dropout: Fraction = 0.0
    """Dropout of hidden states and attention; 0 wherever equality across layouts is claimed."""
    priced_as: str | None = None
    """A proxy's full-size model: the clock accounts T of that one. None: the model itself."""
    training: TrainingSpec
    """Optimiser settings."""
    source: str
    """Where the figures come from."""

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name.lower() in NOT_MODELS:  # some file systems do not tell a from A
            raise ValueError(
                f"name '{name}' is taken: a tier's folder holds something else under it; "
                f"nearest: '{name}-model'"
            )
        return name

    @model_validator(mode="after")
    def _divides(self) -> ModelSpec:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Elements per attention head, e."""
        return self.hidden_size // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Vocabulary padded to a multiple of 128*tp_max, the same under every layout."""
        multiple = 128 * self.tp_max
        return math.ceil(self.vocab_size / multiple) * multiple

    @property
    def is_causal(self) -> bool:
        """Whether the model predicts the next token (True) or masked tokens (False)."""
        return self.family != "bert"

    @property
    def perplexity_name(self) -> str:
        """Name of the perplexity in tables: BERT's is over masked tokens."""
        return "ppl" if self.is_causal else "mlm_ppl"

    @property
    def num_params(self) -> int:
        """Parameters, from the shapes (padded vocabulary; LayerNorm has two vectors)."""
        h, f, kv = self.hidden_size, self.ffn_size, self.num_kv_heads * self.head_size
        if self.family == "llama":
            layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h
            rest = h
        else:
            layer = 4 * h * h + 2 * h * f + (4 * h + f + h) + 4 * h
            rest = self.seq_length * h + 2 * h
        if self.family == "bert":  # token types, the LM head's dense + LayerNorm, its output bias
            rest += 2 * h + h * h + 3 * h + self.padded_vocab_size
        embeddings = self.padded_vocab_size * h * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + rest + embeddings
