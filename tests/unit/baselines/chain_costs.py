"""Costs for sums by hand: every layer's times scale with mbs/tp, memory is a plain sum.

By default a layer takes 1 s forward and 2 s backward per sample at tp = 1, the head half a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from problems import tiny_model

from cona.planners import Query
from cona.specs import LinkSpec
from cona.strategy import Strategy, Techniques


@dataclass(frozen=True, kw_only=True)
class ChainCosts:
    """Costs of a chain of layers."""

    forward_s: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    """Forward pass of each layer per sample; backward takes twice as long."""
    head_s: float = 1.5
    """Both passes of the head per sample."""
    fixed_s: float = 0.0
    """Added to every forward pass, whatever its size."""
    optimizer_s: float = 0.0
    """Step of the whole model at tp = 1."""
    bandwidth: float = 1e12
    """Bytes per second of all links; messages have no latency."""
    layer_params: float = 1000.0
    """Bytes of a layer's weights; the ends have none."""
    base: float = 0.0
    """Bytes that any GPU needs."""
    state: float = 0.0
    """Bytes of a layer's state at tp = 1, without sharding."""
    kept: float = 0.0
    """Bytes of a layer's activations per sample at tp = 1; a quarter if computed again."""
    ends: tuple[float, float] = (0.0, 0.0)
    """Bytes of embedding and head at tp = 1."""

    def layer_time(self, layer: int, tp: int, mbs: int, part: str) -> float:
        forward = self.forward_s[layer] * mbs / tp + self.fixed_s
        return {"forward": 1, "backward": 2, "both": 3}[part] * forward

    def head_time(self, tp: int, mbs: int, part: str) -> float:
        return {"forward": 1 / 3, "backward": 2 / 3, "both": 1.0}[part] * self.head_s * mbs / tp

    def forward_backward_time(self, tp: int, mbs: int) -> float:
        layers = range(len(self.forward_s))
        return sum(self.layer_time(i, tp, mbs, "both") for i in layers)

    def batch_generator_time(self) -> float:
        return 0.0

    def optimizer(self, tp: int, pp: int) -> float:
        return self.optimizer_s / tp / pp

    def p2p(self, num_bytes: float) -> float:
        return num_bytes / self.bandwidth

    def allreduce(self, num_bytes: float, n: int) -> float:
        return 2 * (n - 1) / n * num_bytes / self.bandwidth

    def params_bytes(self, layer: int | str) -> float:
        return 0.0 if isinstance(layer, str) else self.layer_params

    def link(self, tier: str) -> LinkSpec:
        return LinkSpec(bandwidth_gb_s=self.bandwidth / 1e9, efficiency=1.0, latency_us=0)

    def memory(self, stage: int, strategy: Strategy) -> float:
        num_layers = len(self.forward_s) // strategy.pp
        in_flight = min(strategy.pp - stage, strategy.num_microbatches)
        techniques = strategy.techniques
        state = self.state / (strategy.dp if techniques.zero_stage == 3 else 1)
        kept = self.kept * strategy.mbs * in_flight
        kept /= 4 if techniques.recompute == "full" else 1
        ends = self.ends[0] * (stage == 0) + self.ends[1] * (stage == strategy.pp - 1)
        return self.base + (num_layers * (state + kept) + ends) / strategy.tp


def chain_query(
    costs: ChainCosts,
    *,
    num_gpus: int = 2,
    gbs: int = 4,
    memory: float = 1e9,
    heads: int = 4,
    gpus_per_node: int = 8,
    mbs_max: int = 32,
    **techniques: object,
) -> Query:
    """Return a query about that chain; one head allows tp = 1 only."""
    model = tiny_model(
        num_layers=len(costs.forward_s), num_heads=heads, num_kv_heads=heads, tied_embeddings=False
    )
    return Query(
        model=model,
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        gbs=gbs,
        mbs_max=mbs_max,
        costs=costs,
        gpu_memory_bytes=memory,
        techniques=Techniques(**techniques),
    )


def shape(plan) -> list[tuple[int, int, int]]:
    """Return (layers, dp, tp) of every stage."""
    return [(s.num_layers, s.dp, s.tp) for s in plan.stages]
