"""Calculon's iteration time (Isaev et al. 2023), restated: the model that the paper plans with.

Source: cost-model.md, Calculon's model: fp16, full activation recompute, tensor parallelism by
all-reduce, no overlap, the optimizer sharded over dp (ZeRO-1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.cost.base import AnalyticalModel, Columns
from cona.cost.gpus import Floats, gpu
from cona.cost.layer import ELEMENT_BYTES, Layer
from cona.cost.memory import PaperMemory
from cona.cost.network import Network
from cona.specs import ClusterSpec, LadderSpec, ModelSpec
from cona.strategy import Recompute, Strategy, StrategySpace


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """Seconds of tensor-parallel communication of one layer and micro-batch; 0 where tp = 1."""

    forward_s: Floats
    """Forward pass; the backward pass costs the same."""
    recompute_s: Floats
    """Repeated all-reduces of the recomputed forward pass, without their reductions."""


class Calculon(AnalyticalModel):
    """Calculon's equations; its layers are GPT's and it knows no vocabulary."""

    name = "calculon"

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        *,
        recompute: Recompute = "full",
        is_sharded: bool = True,
    ) -> None:
        """Price one model on one cluster; the defaults are what the paper plans with.

        Args:
            model: the model that is priced.
            cluster: the target cluster.
            recompute: which activations the backward pass computes again.
            is_sharded: the optimizer is sharded over dp (ZeRO-1).
        """
        super().__init__(model, cluster)
        self.recompute = recompute
        self.is_sharded = is_sharded
        self.gpu = gpu(cluster.gpu)
        self.network = Network.of(cluster)
        self.memory = PaperMemory(model)

    def layer(self, columns: Columns) -> Layer:
        """Return one layer's work at each strategy's micro-batch and tensor-parallel degree."""
        return Layer(model=self.model, gpu=self.gpu, mbs=columns.mbs, tp=columns.tp)

    def parts_s(self, columns: Columns) -> dict[str, Floats]:
        """Return the parts of T: m micro-batches through a stage of l layers, then the rest."""
        layer = self.layer(columns)
        tensor = self.tensor_parallel(layer)
        num_layers = self.model.num_layers / columns.pp
        slots = columns.num_microbatches * num_layers
        p2p_s = self._p2p_s(layer, columns)
        one = np.ones_like(columns.dp)
        return {
            "compute": slots * (layer.forward_s + layer.backward_s),
            "recompute": slots * layer.recompute_s(self.recompute),
            "tp_comm": slots * (2 * tensor.forward_s + tensor.recompute_s),
            "pp_p2p": 2 * columns.num_microbatches * p2p_s,
            "bubble": (columns.pp - 1) * (num_layers * self._slot_s(layer, tensor) + 2 * p2p_s),
            "dp_comm": num_layers * self._data_parallel_s(layer, columns.dp),
            "optimizer": num_layers * layer.optimizer_s(columns.dp if self.is_sharded else one),
            "head": self.head_s(layer, columns),
        }

    def head_s(self, layer: Layer, columns: Columns) -> Floats:
        """Return the seconds of embedding, LM head and loss: Calculon leaves them out."""
        return np.zeros_like(columns.tp)

    def memory_bytes(self, strategy: Strategy) -> float:
        """Return the bytes that a strategy needs on its fullest GPU."""
        return self.memory.memory_bytes(strategy)

    def broken_rule(self, strategy: Strategy) -> str | None:
        """Return the first broken rule: GPUs, divisibility, tiers, memory."""
        if strategy.num_gpus > self.cluster.num_gpus:
            return (
                f"dp*tp*pp = {strategy.num_gpus} exceeds the {self.cluster.num_gpus} GPUs "
                f"of {self.cluster.name}"
            )
        space = StrategySpace(
            model=self.model, num_gpus=strategy.num_gpus, ladder=LadderSpec()
        )  # the ladder plays no part in a layout's rules
        return (
            space.why_not_layout(strategy.layout)
            or self._too_large_for_tier(strategy)
            or self.memory.why_not(strategy, self.cluster.gpu_memory_gb)
        )

    def _too_large_for_tier(self, strategy: Strategy) -> str | None:
        network = self.network
        for axis, tier in (("tp", network.tp), ("pp", network.pp), ("dp", network.dp)):
            degree = getattr(strategy, axis)
            if degree > tier.size:
                return (
                    f"{axis} {degree} exceeds the {tier.size} GPUs of the {tier.name}; "
                    f"nearest: {tier.size}"
                )
        return None

    def tensor_parallel(self, layer: Layer) -> TensorParallel:
        """Return the seconds of tensor-parallel communication of one layer and micro-batch."""
        num_bytes = layer.hidden * ELEMENT_BYTES
        all_reduce_s = self.network.tp.all_reduce_s(num_bytes, layer.tp)
        sum_flops = layer.hidden * (layer.tp - 1) / layer.tp
        reduction_s = self.gpu.vector_s(sum_flops, 2 * num_bytes)
        is_split = layer.tp > 1
        return TensorParallel(
            forward_s=np.where(is_split, 2 * (all_reduce_s + reduction_s), 0.0),
            recompute_s=np.where(is_split & (self.recompute == "full"), 2 * all_reduce_s, 0.0),
        )

    def _p2p_s(self, layer: Layer, columns: Columns) -> Floats:
        message_s = self.network.pp.p2p_s(layer.hidden * ELEMENT_BYTES)
        return np.where(columns.pp > 1, message_s, 0.0)

    def _data_parallel_s(self, layer: Layer, dp: Floats) -> Floats:
        """Reduce-scatter of gradients and all-gather of weights per layer, or one all-reduce."""
        num_bytes = layer.num_weights * ELEMENT_BYTES
        if self.is_sharded:
            return np.where(dp > 1, 2 * self.network.dp.gather_s(num_bytes, dp), 0.0)
        return np.where(dp > 1, self.network.dp.all_reduce_s(num_bytes, dp), 0.0)

    def _slot_s(self, layer: Layer, tensor: TensorParallel) -> Floats:
        """Seconds for which one layer of another stage keeps a stage waiting, per micro-batch."""
        forward_s = layer.forward_s + tensor.forward_s
        repeated_s = layer.recompute_s(self.recompute) + tensor.recompute_s
        return forward_s + repeated_s + layer.backward_s + tensor.forward_s
