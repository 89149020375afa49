"""The three families in plain PyTorch: the peer of the engine in speed, and its judge in tests.

Nothing here knows megatron, except ``copy_weights``, which reads a megatron model's parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cona.specs import ModelSpec


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        h, e, has_bias = spec.hidden_size, spec.head_size, spec.family != "llama"
        self.spec = spec
        self.sizes = [n * e for n in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
        self.norm1, self.norm2 = _norm(spec), _norm(spec)
        self.qkv = nn.Linear(h, sum(self.sizes), bias=has_bias)
        self.out = nn.Linear(h, h, bias=has_bias)
        self.up = nn.Linear(h, spec.ffn_size * (1 if has_bias else 2), bias=has_bias)
        self.down = nn.Linear(spec.ffn_size, h, bias=has_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states, shape [samples, seq, hidden]."""
        x = x + self.out(self._attend(self.norm1(x)))
        return x + self.down(self._activate(self.up(self.norm2(x))))

    def _attend(self, x: Tensor) -> Tensor:
        samples, seq, hidden = x.shape
        parts = self.qkv(x).split(self.sizes, dim=-1)
        q, k, v = (p.view(samples, seq, -1, self.spec.head_size).transpose(1, 2) for p in parts)
        if self.spec.family == "llama":
            q, k = rotate(q, self.spec.rope_theta), rotate(k, self.spec.rope_theta)
        context = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.spec.is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        return context.transpose(1, 2).reshape(samples, seq, hidden)

    def _activate(self, x: Tensor) -> Tensor:
        if self.spec.family != "llama":
            return F.gelu(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up


class PlainModel(nn.Module):
    """A language model with tied embeddings that returns the loss of every target."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        h, vocab = spec.hidden_size, spec.padded_vocab_size
        self.spec = spec
        self.tokens = nn.Embedding(vocab, h)
        if spec.family != "llama":
            self.positions = nn.Embedding(spec.seq_length, h)
        if spec.family == "bert":
            self.types = nn.Embedding(2, h)
            self.head_dense, self.head_norm = nn.Linear(h, h), _norm(spec)
            self.head_bias = nn.Parameter(torch.zeros(vocab))
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = _norm(spec)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the known tokens, shape [samples, seq, vocab_size]."""
        x = self.tokens(tokens)
        if self.spec.family != "llama":
            x = x + self.positions.weight[: tokens.shape[1]]
        if self.spec.family == "bert":
            x = x + self.types.weight[0]
        for block in self.blocks:
            x = block(x)
        return self._head(self.norm(x))[..., : self.spec.vocab_size]

    def _head(self, x: Tensor) -> Tensor:
        if self.spec.family != "bert":
            return F.linear(x, self.tokens.weight)
        x = self.head_norm(F.gelu(self.head_dense(x)))
        return F.linear(x, self.tokens.weight, self.head_bias)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy of every target in nats; all shapes [samples, seq]."""
        logits = self(tokens)
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100
        ).view_as(tokens)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Apply rotary position embedding: the pair (j, j + e/2) turns by position * theta^(-2j/e).

    Args:
        x: queries or keys, shape [samples, heads, seq, e].
        theta: base of the frequencies.
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def plain_names(spec: ModelSpec) -> dict[str, str]:
    """Return the plain model's parameter names by megatron's."""
    stack = "encoder" if spec.family == "bert" else "decoder"
    inner = {
        "input_layernorm": "norm1",
        "self_attention.linear_qkv": "qkv",
        "self_attention.linear_proj": "out",
        "pre_mlp_layernorm": "norm2",
        "mlp.linear_fc1": "up",
        "mlp.linear_fc2": "down",
    }
    modules = {
        "embedding.word_embeddings": "tokens",
        "embedding.position_embeddings": "positions",
        "embedding.tokentype_embeddings": "types",
        "lm_head.dense": "head_dense",
        "lm_head.layer_norm": "head_norm",
        f"{stack}.final_layernorm": "norm",
    }
    for i in range(spec.num_layers):
        modules |= {f"{stack}.layers.{i}.{a}": f"blocks.{i}.{b}" for a, b in inner.items()}
    ends = ("weight", "bias")
    names = {f"{a}.{end}": f"{b}.{end}" for a, b in modules.items() for end in ends}
    return names | {"output_layer.bias": "head_bias"}


def to_plain(spec: ModelSpec, name: str, value: Tensor) -> Tensor:
    """Reorder a megatron parameter (or gradient): its q, k, v rows are grouped by kv head."""
    if "linear_qkv" not in name:
        return value
    rows = [spec.num_heads // spec.num_kv_heads, 1, 1]
    groups = value.reshape(spec.num_kv_heads, sum(rows), spec.head_size, -1)
    ordered = [part.reshape(-1, groups.shape[-1]) for part in groups.split(rows, dim=1)]
    return torch.cat(ordered).reshape(value.shape)


def copy_weights(spec: ModelSpec, source: nn.Module, target: PlainModel) -> None:
    """Copy a megatron model's weights by name; a parameter without a partner is a KeyError."""
    names = plain_names(spec)
    weights = {names[n]: to_plain(spec, n, p.detach()) for n, p in source.named_parameters()}
    target.load_state_dict(weights, strict=True)


def _norm(spec: ModelSpec) -> nn.Module:
    kind = nn.RMSNorm if spec.family == "llama" else nn.LayerNorm
    return kind(spec.hidden_size, eps=spec.norm_eps)
