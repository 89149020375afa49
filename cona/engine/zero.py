"""One rank's slice of a model under DeepSpeed, whose state ZeRO spreads over the replicas.

Stage 1 spreads the float32 weights and both moments, stage 2 the gradient too, stage 3 also the
weights that the layers compute with. Only DeepSpeed knows where: all reading and writing of the
state goes through its functions, parameter by parameter.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from cona.engine import cpu, universal
from cona.engine.flat import MOMENTS
from cona.engine.gradient_statistics import GradientStatistics
from cona.engine.models import build_stage
from cona.engine.shards import Shard, shards
from cona.engine.stage import Numerics, name_in_module
from cona.engine.unpickling import plain_loads_of_deepspeed
from cona.engine.zero_setup import DECAYS, take_over
from cona.specs import ModelSpec
from cona.strategy import Layout

TAG = "state"
"""Name of the one checkpoint that a folder of DeepSpeed's holds."""


class ZeroStage:
    """One rank's slice of a model; its weights are zero until they are set.

    Megatron's process groups must be those of the layout.

    Args:
        spec: the model.
        layout: the layout, without pipeline.
        numerics: precision and recomputation.
        zero_stage: 1, 2 or 3.

    Attributes:
        starts: where each shard stands in the vectors that ``vectors`` returns.
        statistics: of the gradients of micro-batches.
    """

    def __init__(
        self, spec: ModelSpec, layout: Layout, numerics: Numerics, zero_stage: int
    ) -> None:
        self.spec, self.layout, self.zero_stage = spec, layout, zero_stage
        module = build_stage(spec, layout, dtype=numerics.dtype, recompute=numerics.recompute)
        names = [name for name, _ in module.named_parameters()]
        by_name = {
            name_in_module(names, shard): shard for shard in shards(spec, layout, dist.get_rank())
        }
        held = [replace(by_name[name], local_name=name) for name in names]
        stops = accumulate(shard.numel for shard in held)
        self.starts = {s: stop - s.numel for s, stop in zip(held, stops, strict=True)}
        _give_storage(module, held, numerics.dtype)
        self._parameters = dict(zip(held, module.parameters(), strict=True))
        self._engine = take_over(
            module, spec, self._parameters, zero_stage=zero_stage, precision=numerics.precision
        )
        self._set_up_moments()
        self.statistics = GradientStatistics(
            dict(module.named_parameters()),
            {shard.local_name for shard in held if shard.is_counted},
            None,
            parallel_state.get_tensor_model_parallel_group(),
        )

    # --- training ---------------------------------------------------------------------------------

    def train(self, mode: bool) -> None:
        """Choose between training and evaluation (dropout)."""
        self._engine.train(mode)

    def losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every target in nats; all shapes [samples, seq]."""
        with cpu.megatron_on_this_device():
            return self._engine(tokens, labels)

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradient to those before it; the replicas' mean is what ``step`` applies."""
        with cpu.megatron_on_this_device():
            self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, lr: float) -> tuple[float, bool]:
        """Clip and apply the gradient, unless it is not finite.

        Returns:
            The whole model's gradient norm before clipping, and whether it was applied.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        applied = self._engine.was_step_applied()
        return float(self._engine.get_global_grad_norm()) if applied else math.inf, applied

    # --- state ------------------------------------------------------------------------------------

    def _flat_weights(self) -> list[Tensor]:
        """Return this rank's partition of the float32 weights, one vector per group."""
        optimizer = self._engine.optimizer
        if self.zero_stage == 3:
            return optimizer.fp32_partitioned_groups_flat
        return optimizer.single_partition_of_fp32_groups

    def _set_up_moments(self) -> None:
        """Create AdamW's state, which DeepSpeed would only after the first step."""
        state = self._engine.optimizer.optimizer.state
        for flat in self._flat_weights():
            step = torch.zeros((), dtype=torch.float32, device=flat.device)
            moments = {name: torch.zeros_like(flat) for name in MOMENTS}
            state[flat] = {"step": step, **moments}
        if self.zero_stage < 3:
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    @property
    def num_updates(self) -> int:
        """Updates done, Adam's t."""
        state = self._engine.optimizer.optimizer.state
        return int(state[self._flat_weights()[0]]["step"])

    @num_updates.setter
    def num_updates(self, count: int) -> None:
        state = self._engine.optimizer.optimizer.state
        for flat in self._flat_weights():  # each its own: it is counted up in place
            state[flat]["step"] = torch.tensor(float(count), device=flat.device)

    def vectors(self) -> dict[str, Tensor]:
        """Gather copies of the slice's state by name, as ``cona.engine.stage.Stage`` has it.

        Every replica gets all of it: for a moment it holds what a rank without ZeRO holds.

        Returns:
            Weights and both moments, shapes [parameters], float32.
        """
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        vectors = self.empty_vectors()
        for shard, start in self.starts.items():
            rows, parameter = slice(start, start + shard.numel), self._parameters[shard]
            vectors["weights"][rows] = safe_get_full_fp32_param(parameter).detach().flatten()
            for name in MOMENTS:
                vectors[name][rows] = safe_get_full_optimizer_state(parameter, name).flatten()
        return vectors

    def empty_vectors(self) -> dict[str, Tensor]:
        """Return vectors like those that ``vectors`` returns, their values undefined."""
        total = sum(shard.numel for shard in self.starts)
        return {name: torch.empty(total, device=cpu.device()) for name in ("weights", *MOMENTS)}

    def set_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Overwrite weights and moments by vectors like those that ``vectors`` returns."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        for shard, start in self.starts.items():
            rows, parameter = slice(start, start + shard.numel), self._parameters[shard]
            safe_set_full_fp32_param(parameter, vectors["weights"][rows])
            for name in MOMENTS:
                safe_set_full_optimizer_state(parameter, vectors[name][rows], name)
        self._refresh()

    def _refresh(self) -> None:
        """Make the layers see the float32 weights."""
        optimizer = self._engine.optimizer
        if self.zero_stage < 3:
            optimizer.update_lp_params()
            return
        optimizer.checkpoint_event_prologue()
        for group in range(len(self._flat_weights())):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.checkpoint_event_epilogue()

    def save_native(self, folder: Path, scalars: dict[str, Any]) -> None:
        """Write DeepSpeed's own checkpoint: a file per rank, for this layout only."""
        self._engine.save_checkpoint(str(folder), tag=TAG, client_state={"scalars": scalars})

    def load_universal(self, folder: Path) -> dict[str, Any]:
        """Read a universal checkpoint of any layout; return the scalars saved with it."""
        with plain_loads_of_deepspeed():
            _, client = self._engine.load_checkpoint(str(folder), tag=universal.name_of(TAG))
        scalars: dict[str, Any] = client["scalars"]
        # Under stage 3 DeepSpeed gives every group the first one's settings, and one step counter.
        for group, decay in zip(self._engine.optimizer.param_groups, DECAYS.values(), strict=True):
            group.update({"weight_decay": self.spec.training.weight_decay, **decay})
        self.num_updates = scalars["num_updates"]
        return scalars

    def close(self) -> None:
        """Give all memory back."""
        self.statistics.close()
        self._engine.destroy()
        self._parameters.clear()
        self._engine = None
        gc.collect()  # DeepSpeed's engine and its hooks refer to each other


def _give_storage(module: nn.Module, held: list[Shard], dtype: torch.dtype) -> None:
    """Replace parameters without storage by zeros, and mark those that are slices."""
    for shard in held:
        parent_name, _, leaf = shard.local_name.rpartition(".")
        parent = module.get_submodule(parent_name)
        hollow = getattr(parent, leaf)
        parameter = nn.Parameter(torch.zeros(hollow.shape, dtype=dtype, device=cpu.device()))
        vars(parameter).update(vars(hollow))  # megatron's marks
        # DeepSpeed counts a parameter without this mark once over the tensor-parallel ranks.
        parameter.tensor_model_parallel = shard.shape != shard.global_shape  # type: ignore[attr-defined]
        setattr(parent, leaf, parameter)
