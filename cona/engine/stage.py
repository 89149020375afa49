"""What one rank holds under one layout: its part of the model, flat, with optimizer and hooks."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from torch import Tensor, nn

from cona.engine import cpu
from cona.engine.flat import MOMENTS, FlatAdamW, runs, square_norm
from cona.engine.gradient_statistics import GradientStatistics, TiedEmbedding
from cona.engine.models import build_stage, has_transformer_engine
from cona.engine.reshard import FlatShards
from cona.engine.shards import Shard, shards
from cona.errors import ConfigError, nearest
from cona.specs import ModelSpec
from cona.strategy import Layout, Recompute

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Types of the weights that layers compute with, by the name of the precision."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How a stage computes."""

    precision: str = "fp32"
    """fp32, bf16 or fp16; master weights and moments are always float32."""
    recompute: Recompute = "none"
    """Activations that the backward pass computes again."""
    sequence_parallel: bool = False
    """Shard norms and dropout over the tensor-parallel ranks; needs Transformer Engine, on CUDA."""

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            choice = nearest(self.precision, DTYPES)
            raise ConfigError(f"unknown precision '{self.precision}': {choice}")
        if self.sequence_parallel and not has_transformer_engine():
            raise ConfigError(
                "sequence_parallel true needs the layers of Transformer Engine on a CUDA device; "
                "without them choose false"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights that layers compute with."""
        return DTYPES[self.precision]


class Stage:
    """One rank's part of a model under one layout; its weights are zero until they are set.

    Megatron's process groups must be those of the layout.

    Args:
        spec: the model.
        layout: the layout.
        numerics: precision and recomputation.

    Attributes:
        ddp: megatron's module with its gradient buffer.
        optimizer: AdamW over the rank's flat float32 weights.
        starts: where each shard stands in the flat vectors.
    """

    def __init__(self, spec: ModelSpec, layout: Layout, numerics: Numerics) -> None:
        self.spec, self.layout, self.numerics = spec, layout, numerics
        self.rank, device = dist.get_rank(), cpu.device()
        module = build_stage(
            spec,
            layout,
            dtype=numerics.dtype,
            recompute=numerics.recompute,
            sequence_parallel=numerics.sequence_parallel,
        )
        names = [name for name, _ in module.named_parameters()]
        held = {name_in_module(names, shard): shard for shard in shards(spec, layout, self.rank)}
        # Megatron's buffer of gradients has the last parameter first.
        self.shards = [replace(held[name], local_name=name) for name in reversed(names)]
        sizes = [math.prod(shard.shape) for shard in self.shards]
        self.starts = dict(zip(self.shards, _starts(sizes), strict=True))
        weights = torch.zeros(sum(sizes), device=device)
        self._live = weights if numerics.precision == "fp32" else weights.to(numerics.dtype)
        self._give_storage(module)
        with cpu.megatron_on_this_device():
            self.ddp = DistributedDataParallel(
                module.config,
                DistributedDataParallelConfig(grad_reduce_in_fp32=True),
                module.to(device),
            )
        (buffer,) = self.ddp.buffers
        decays = [(size, s.is_decayed) for size, s in zip(sizes, self.shards, strict=True)]
        self.optimizer = FlatAdamW(weights, buffer.grad_data, decays, spec.training)
        counted = [(size, s.is_counted) for size, s in zip(sizes, self.shards, strict=True)]
        self._counted = [rows for rows, counts in runs(counted) if counts]
        self.statistics = self._statistics()

    def _give_storage(self, module: nn.Module) -> None:
        """Replace parameters without storage by views of the flat vector."""
        for shard in self.shards:
            parent_name, _, leaf = shard.local_name.rpartition(".")
            parent = module.get_submodule(parent_name)
            hollow = getattr(parent, leaf)
            rows = self._live[self.starts[shard] :][: hollow.numel()]
            parameter = nn.Parameter(rows.view(hollow.shape))
            vars(parameter).update(vars(hollow))  # megatron's marks
            setattr(parent, leaf, parameter)

    def _statistics(self) -> GradientStatistics:
        return GradientStatistics(
            dict(self.ddp.module.named_parameters()),
            {shard.local_name for shard in self.shards if shard.is_counted},
            self._tied_embedding(),
            parallel_state.get_tensor_model_parallel_group(),
        )

    def _tied_embedding(self) -> TiedEmbedding | None:
        tied = [s for s in self.shards if s.name == "embedding.word_embeddings.weight"]
        if self.layout.pp == 1 or not self.spec.tied_embeddings or not tied:
            return None
        is_first = parallel_state.is_pipeline_first_stage()
        group = parallel_state.get_embedding_group()
        first, last = dist.get_process_group_ranks(group)
        return TiedEmbedding(
            name=tied[0].local_name,
            is_first=is_first,
            peer=last if is_first else first,
            first_row=tied[0].offset[0],
            num_rows=tied[0].shape[0],
            group=group,
        )

    def vectors(self) -> dict[str, Tensor]:
        """Return the state by name: weights and both moments, shapes [parameters], float32."""
        return {
            "weights": self.optimizer.weights,
            **dict(zip(MOMENTS, self.optimizer.moments, strict=True)),
        }

    def flat_shards(self) -> FlatShards:
        """Return the state as the live switch sees it."""
        return FlatShards(self.starts, list(self.vectors().values()))

    def refresh(self) -> None:
        """Make the layers see the float32 weights, after these were set or updated."""
        if self._live is not self.optimizer.weights:
            self._live.copy_(self.optimizer.weights)

    def reduce_gradient(self) -> float:
        """Sum the gradient over replicas and tied copies; return this rank's part of |G|^2."""
        with cpu.megatron_on_this_device():
            finalize_model_grads([self.ddp], None)
        return sum(square_norm(self.optimizer.gradient[rows]) for rows in self._counted)

    def free_gradient(self) -> None:
        """Give the gradient's memory back; the stage cannot train any more."""
        self.statistics.close()
        self.ddp.grad_accs.clear()  # its hooks hold the wrapper, which holds them
        _free(self.optimizer.gradient)

    def free(self) -> None:
        """Give all memory back, whoever still refers to the tensors."""
        for vector in (*self.vectors().values(), self._live):
            _free(vector)


FUSED_NORMS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
"""Transformer Engine makes a norm part of the matrix that follows it."""


def name_in_module(names: Collection[str], shard: Shard) -> str:
    """Return what a module calls the parameter of a shard."""
    if shard.local_name in names:
        return shard.local_name
    fused = shard.local_name
    for norm, part in FUSED_NORMS.items():
        fused = fused.replace(norm, part)
    return fused


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _free(vector: Tensor) -> None:
    vector.untyped_storage().resize_(0)
