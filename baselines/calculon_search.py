"""Exhaustive search with Calculon's own model: what a perfect search makes of that model.

Isaev et al., "Calculon: a methodology and tool for high-level co-design of systems and large
language models", SC 2023. T is the `calculon` preset of the cost model, the one that CONA's paper
plans with (full recomputation, ZeRO-1, no LM head), and so is what fits.

Left out: Calculon's search over its other options (offloading, overlap, interleaving).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cona.cost.calculon import Calculon
from cona.cost.gpu_names import with_known_gpu
from cona.errors import ConfigError
from cona.planners import Answer, OfflinePlanner, Query, choose, uniform_plan
from cona.search import best


@dataclass(kw_only=True)
class CalculonSearch(OfflinePlanner):
    """argmin T over S(gbs) by Calculon."""

    name: ClassVar[str] = "calculon"
    summary: ClassVar[str] = "exhaustive search with Calculon's model, as CONA's paper prices"
    source: ClassVar[str] = "Calculon (Isaev et al., SC 2023)"

    belief: str | None = "calculon"
    """Cost model that prices the pieces: its own."""

    def plan(self, query: Query) -> Answer:
        """Return the fastest plan; raises ConfigError naming the rule where nothing fits."""
        if query.cluster is None:
            raise ConfigError(f"{self.name}: it prices layers from equations; leave --profile out")
        times = Calculon(query.model, with_known_gpu(query.cluster))
        feasible = [s for s in query.strategies if times.why_not(s) is None]
        if not feasible:
            best(query.strategies, times)  # says which rule the first of them breaks
        plans = [
            uniform_plan(
                s,
                query.model.num_layers,
                believed_s=float(seconds),
                memory_bytes=[times.memory.memory_bytes(s)] * s.pp,
            )
            for s, seconds in zip(feasible, times.times_s(feasible), strict=True)
        ]
        return choose(self.name, query, plans)
