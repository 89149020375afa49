"""The costs that planners ask for, from the named parts of any time model's T.

Source: baselines.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cona.cost.base import TimeModel
from cona.cost.collectives import Network
from cona.cost.gpus import Floats
from cona.cost.improved import Improved
from cona.cost.inputs import of_cluster, one
from cona.cost.model_costs import ModelCosts, checked_sizes
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Layout, Strategy

MICROBATCH_PARTS = ("compute", "tp_comm", "launch", "head")
"""Parts of T that a micro-batch causes, without recomputation, pipeline and replicas."""

FORWARD_SHARE = 1 / 3
"""ASSUMED: a backward pass takes twice its forward pass, as its FLOPs do."""


class PartsCosts(ModelCosts):
    """Costs from the breakdown of the model cut to one and to two layers, on one stage.

    The second layer is what the two differ in; the head is what the first leaves of the rest.
    Messages and all-reduces use the links as `improved` does, at the rates that its calibration
    has for collectives (any other model: the links' own): all-reduces of n ranks are between n
    consecutive GPUs, and messages pass the slowest hop of a pipeline over the whole cluster.

    Args:
        model: the model that is planned for.
        cluster: the target cluster.
        times_of: returns T of a model on that cluster.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, times_of: Callable[[ModelSpec], TimeModel]
    ) -> None:
        super().__init__(model, cluster)
        self._times = {count: times_of(cut(model, count)) for count in (1, 2)}
        self._links = _links(cluster, self._times[1])
        self._parts_s = cache(self._uncached_parts_s)

    def _layer_s(self, tp: int, mbs: int) -> tuple[float, float]:
        return _passes_s(self._microbatch_s(2, tp, mbs) - self._microbatch_s(1, tp, mbs))

    def _head_s(self, tp: int, mbs: int) -> tuple[float, float]:
        return _passes_s(2 * self._microbatch_s(1, tp, mbs) - self._microbatch_s(2, tp, mbs))

    def optimizer(self, tp: int, pp: int) -> float:
        """Return the seconds of the optimizer's step: a stage's layers and the ends it holds."""
        tp, pp = checked_sizes(tp=tp, pp=pp)
        self._check_layout(Layout(dp=1, tp=tp, pp=pp))
        one_s, two_s = (self._parts_s(count, tp, 1)["optimizer"] for count in (1, 2))
        layer_s, ends_s = two_s - one_s, 2 * one_s - two_s
        if pp > 1 and not self.model.tied_embeddings:  # a table on each end, not two on one stage
            ends_s /= 2
        return self.model.num_layers / pp * layer_s + ends_s

    def _p2p_s(self, num_bytes: Floats) -> Floats:
        return self._links.p2p_s(num_bytes, one(self.cluster.num_gpus))

    def _allreduce_s(self, num_bytes: Floats, ranks: Floats) -> Floats:
        return 2 * self._links.gather_s(num_bytes, ranks, one(1))

    def _microbatch_s(self, num_layers: int, tp: int, mbs: int) -> float:
        parts_s = self._parts_s(num_layers, tp, mbs)
        return sum(parts_s.get(name, 0.0) for name in MICROBATCH_PARTS)

    def _uncached_parts_s(self, num_layers: int, tp: int, mbs: int) -> dict[str, float]:
        times, alone = self._times[num_layers], _alone(tp, mbs)
        if isinstance(times, Improved):  # its parts exist whether or not they fit into memory
            return {name: float(part[0]) for name, part in times.predict([alone]).parts.items()}
        return times.breakdown(alone)


def _links(cluster: ClusterSpec, times: TimeModel) -> Network:
    """The links at the rates that collectives reach by a time model's calibration."""
    columns, rates = of_cluster(cluster), (1.0, 1.0)
    if isinstance(times, Improved):
        constants = times.calibration.constants
        rates = constants.intra_rate, constants.inter_rate
    return Network(
        gpus_per_node=columns["gpus_per_node"],
        intra_bytes_per_s=columns["intra_bytes_per_s"] * rates[0],
        inter_bytes_per_s=columns["inter_bytes_per_s"] * rates[1],
        intra_latency_s=columns["intra_latency_s"],
        inter_latency_s=columns["inter_latency_s"],
    )


def cut(model: ModelSpec, num_layers: int) -> ModelSpec:
    """Return the model with its first layers only, so that any GPU holds it."""
    return model.model_copy(update={"num_layers": num_layers})


def _alone(tp: int, mbs: int) -> Strategy:
    """One micro-batch on one pipeline stage and one replica."""
    return Strategy(dp=1, tp=tp, pp=1, mbs=mbs, gbs=mbs)


def _passes_s(both_s: float) -> tuple[float, float]:
    return FORWARD_SHARE * both_s, (1 - FORWARD_SHARE) * both_s
