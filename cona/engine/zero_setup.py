"""How DeepSpeed takes over a model: what it is asked for, and what it must be told about it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from cona.engine import cpu, universal
from cona.engine.models import LanguageModel
from cona.engine.shards import Shard
from cona.specs import ModelSpec, TrainingSpec

MAX_BUCKET = 2**27
"""ASSUMED: most elements that DeepSpeed reduces in one message (its default is 5e8)."""

DECAYS: dict[bool, dict[str, float]] = {True: {}, False: {"weight_decay": 0.0}}
"""Settings of AdamW's two groups: matrices, and what is not decayed."""


def take_over(
    model: LanguageModel,
    spec: ModelSpec,
    parameters: Mapping[Shard, nn.Parameter],
    *,
    zero_stage: int,
    precision: str,
) -> Any:
    """Return DeepSpeed's engine, which calls the model and applies AdamW to its parameters.

    Megatron's process groups must be those of the layout.

    Args:
        model: this rank's slice.
        spec: the whole model.
        parameters: the slice's, by shard; DeepSpeed may take their storage away.
        zero_stage: 1, 2 or 3.
        precision: fp32 or bf16.
    """
    deepspeed = _import_deepspeed()
    module, groups = _Losses(model), _Groups()
    tp = groups.get_tensor_model_parallel_world_size()
    universal.describe(module, spec, parameters, tp)
    universal.set_tensor_parallel_group(groups.get_tensor_model_parallel_group())
    zero = _zero_config(zero_stage, parameters)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=_adamw(spec.training, parameters),
        config={
            # The caller says where an iteration ends, so the next three numbers mean nothing.
            "managed_gradient_accumulation": False,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "train_batch_size": groups.get_data_parallel_world_size(),
            "gradient_clipping": spec.training.clip_grad,
            "zero_optimization": zero,
            "bf16": {"enabled": precision == "bf16"},
            "checkpoint": {"load_universal": True},
            "steps_per_print": 2**31,
        },
        mpu=groups,
        dist_init_required=False,
    )
    return engine


def _import_deepspeed() -> ModuleType:
    """Import DeepSpeed so that it says little, and compiles nothing where no GPU exists."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # It reads this even if the launcher was none of those that it knows.
    os.environ.setdefault("LOCAL_RANK", str(cpu.device().index or 0))
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _zero_config(zero_stage: int, parameters: Mapping[Shard, nn.Parameter]) -> dict[str, Any]:
    largest_vector = max(shard.numel for shard in parameters if not shard.is_decayed)
    bucket = min(MAX_BUCKET, sum(shard.numel for shard in parameters))
    return {
        "stage": zero_stage,
        "overlap_comm": False,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        # Vectors stay whole under stage 3: they are many and small.
        "stage3_param_persistence_threshold": largest_vector + 1,
    }


def _adamw(training: TrainingSpec, parameters: Mapping[Shard, nn.Parameter]) -> torch.optim.AdamW:
    groups = [
        {"params": [p for s, p in parameters.items() if s.is_decayed is decays], **decay}
        for decays, decay in DECAYS.items()
    ]
    return torch.optim.AdamW(
        groups,
        lr=training.base_lr,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_eps,
        weight_decay=training.weight_decay,
        fused=True,
    )


class _Losses(nn.Module):
    """Gives DeepSpeed a module whose forward pass is the loss of every target."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self.register_state_dict_post_hook(_drop_empty)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.model.losses(tokens, labels)


def _drop_empty(_: nn.Module, state: dict[str, Any], *__: Any) -> None:
    """Leave out megatron's empty entries, on which DeepSpeed's converter stumbles."""
    for name in [name for name, value in state.items() if value is None]:
        del state[name]


class _Groups:
    """What DeepSpeed asks its "mpu" about the layout: megatron's groups as they are now."""

    def __init__(self) -> None:
        self._data = parallel_state.get_data_parallel_group()
        self._model = parallel_state.get_tensor_model_parallel_group()

    def get_data_parallel_group(self) -> Any:
        return self._data

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank(self._data)

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size(self._data)

    def get_model_parallel_group(self) -> Any:
        return self._model

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._model)

    def get_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._model)

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
