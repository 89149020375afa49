"""The costs that planners ask for, from equations: what all time models share.

Source: baselines.md, cost-model.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import get_args

import numpy as np

from cona.cost.costs import End, LinkTier, Part
from cona.cost.gpus import Floats
from cona.cost.improved_memory import stage_bytes
from cona.cost.inputs import inputs
from cona.cost.network import Network
from cona.cost.stages import Stages
from cona.cost.state import blocks
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec, LadderSpec, LinkSpec, ModelSpec
from cona.strategy import Layout, Strategy, StrategySpace

WEIGHT_BYTES = 2
"""Bytes of a 16-bit weight."""


class ModelCosts(ABC):
    """Costs of a model on a cluster whose times come from equations, not from a profile.

    Args:
        model: the model that is planned for.
        cluster: the target cluster.

    Raises:
        ConfigError: the cost model does not know the GPU type.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.model, self.cluster = model, cluster
        self.network = Network.of(cluster)

    @abstractmethod
    def _layer_s(self, tp: int, mbs: int) -> tuple[float, float]:
        """Return the seconds of a layer's forward and backward pass."""

    @abstractmethod
    def _head_s(self, tp: int, mbs: int) -> tuple[float, float]:
        """Return the seconds of the head's forward and backward pass."""

    @abstractmethod
    def optimizer(self, tp: int, pp: int) -> float:
        """Return the seconds of the optimizer's step on the fullest stage, not sharded over dp."""

    def layer_time(self, layer: int, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of one layer and micro-batch, tensor-parallel exchange included.

        Memory plays no part: planners ask ``memory``, by rules of their own.

        Args:
            layer: 0 to num_layers - 1; all are alike here.
            tp: tensor-parallel degree.
            mbs: samples of the micro-batch.
            part: forward, backward (without recomputation) or both.

        Raises:
            ConfigError: no such layer or part, a size below 1, or a tp that does not divide the
                model or exceeds the cluster.
        """
        self._check_layer(layer)
        return _part_s(self._layer_s(*self._checked(tp, mbs)), part)

    def head_time(self, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of LM head and loss for one micro-batch; raises like layer_time."""
        return _part_s(self._head_s(*self._checked(tp, mbs)), part)

    def forward_backward_time(self, tp: int, mbs: int) -> float:
        """Return the seconds of one micro-batch through all layers and the head on one stage."""
        layer_s = self.layer_time(0, tp, mbs, "both")
        return self.model.num_layers * layer_s + self.head_time(tp, mbs, "both")

    def batch_generator_time(self) -> float:
        """Return the seconds that fetching one micro-batch adds.

        ASSUMED: none, since data are fetched while the GPU computes.
        """
        return 0.0

    def p2p(self, num_bytes: float) -> float:
        """Return the seconds of a message of ``num_bytes`` between neighbouring stages.

        Raises:
            ConfigError: the size is negative or no number.
        """
        return float(self._p2p_s(column(checked_bytes(num_bytes)))[0])

    def allreduce(self, num_bytes: float, n: int) -> float:
        """Return the seconds of a data-parallel all-reduce of ``num_bytes`` on each of n ranks.

        Raises:
            ConfigError: the size is negative or no number, or n is below 1.
        """
        (ranks,) = checked_sizes(n=n)
        size = column(checked_bytes(num_bytes))
        return 0.0 if ranks == 1 else float(self._allreduce_s(size, column(ranks))[0])

    def params_bytes(self, layer: int | End) -> int:
        """Return the bytes of 16-bit weights of a layer or an end of the model, over all tp.

        Args:
            layer: 0 to num_layers - 1, "embedding" (tokens, and positions if learned) or "head"
                (final norm and LM head; its table also where it is tied).

        Raises:
            ConfigError: no such layer.
        """
        if isinstance(layer, str):
            ends = {"embedding": ("table", "first"), "head": ("last", self._head_table)}
            if layer not in ends:
                raise ConfigError(f"unknown layer '{layer}': {nearest(layer, ends)}")
            return self._weight_bytes(*ends[layer])
        self._check_layer(layer)
        return self._weight_bytes(f"layer{layer}")

    def link(self, tier: LinkTier) -> LinkSpec:
        """Return the link of a tier. Raises ConfigError: no such tier."""
        if tier not in get_args(LinkTier):
            raise ConfigError(f"unknown tier '{tier}': {nearest(tier, get_args(LinkTier))}")
        links = {"intra_node": self.cluster.intra_node, "inter_node": self.cluster.inter_node}
        return links[tier]

    def memory(self, stage: int, strategy: Strategy) -> float:
        """Return the bytes that a strategy needs on one GPU of a pipeline stage.

        Memory is the `improved` model's whatever prices time: Calculon's screen knows no stages.

        Args:
            stage: 0 to pp - 1.
            strategy: with its techniques.

        Raises:
            ConfigError: no such stage, or the degrees do not divide the model.

        Source: cost-model.md, point 7
        """
        self._check_layout(strategy.layout)
        if not 0 <= stage < strategy.pp:
            raise ConfigError(f"stage {stage}: {strategy} has stages 0 to {strategy.pp - 1}")
        row = inputs(self.model, self.cluster, [strategy])
        return float(stage_bytes(row, Stages.of(row), stage)[0])

    def _p2p_s(self, num_bytes: Floats) -> Floats:
        return self.network.pp.p2p_s(num_bytes)

    def _allreduce_s(self, num_bytes: Floats, ranks: Floats) -> Floats:
        return self.network.dp.all_reduce_s(num_bytes, ranks)

    def _checked(self, tp: int, mbs: int) -> tuple[int, int]:
        """Return the sizes; raises ConfigError: no time model has a price for them."""
        tp, mbs = checked_sizes(tp=tp, mbs=mbs)
        self._check_layout(Layout(dp=1, tp=tp, pp=1))
        if tp > self.cluster.num_gpus:
            most = self.cluster.num_gpus
            raise ConfigError(f"tp {tp} exceeds the {most} GPUs of {self.cluster.name}")
        return tp, mbs

    def _check_layout(self, layout: Layout) -> None:
        ladder = LadderSpec()  # plays no part in a layout's rules
        space = StrategySpace(model=self.model, num_gpus=layout.num_gpus, ladder=ladder)
        if rule := space.why_not_layout(layout):
            raise ConfigError(f"{self.model.name}: {rule}")

    def _weight_bytes(self, *names: str) -> int:
        found = blocks(self.model)
        return WEIGHT_BYTES * sum(found[n].sharded + found[n].replicated for n in names)

    @property
    def _head_table(self) -> str:
        return "table" if self.model.tied_embeddings else "head"

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.model.num_layers:
            last = self.model.num_layers - 1
            raise ConfigError(f"layer {layer}: {self.model.name} has layers 0 to {last}")


def column(value: float) -> Floats:
    """Return a row of one value, shape [1]."""
    return np.array([value], float)


def checked_bytes(num_bytes: float) -> float:
    """Return the size of a message. Raises ConfigError: it is negative or no number."""
    if not 0 <= num_bytes < math.inf:
        raise ConfigError(f"num_bytes = {num_bytes}: must be a number of at least 0")
    return num_bytes


def checked_sizes(**sizes: int) -> tuple[int, ...]:
    """Return the sizes in the order given. Raises ConfigError: one is below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{name} = {value}: must be at least 1")
    return tuple(sizes.values())


def _part_s(both: tuple[float, float], part: Part) -> float:
    forward_s, backward_s = both
    seconds = {"forward": forward_s, "backward": backward_s, "both": forward_s + backward_s}
    if part not in seconds:
        raise ConfigError(f"unknown part '{part}': {nearest(part, seconds)}")
    return seconds[part]
