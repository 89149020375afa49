"""A model as planners cut it: embedding, transformer layers and head, one after another.

Source: baselines.md: layer 0 of a profile is the embedding, its last the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise

from cona.cost.costs import End
from cona.cost.measured_costs import embedding_time, layer_memory
from cona.planners.query import Query
from cona.specs import LinkSpec


class LayerChain:
    """Times, memory and weights of the num_layers + 2 pieces; piece 0 is the embedding.

    Args:
        query: its costs price the pieces.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.num_layers = query.model.num_layers
        layers: list[int | End] = list(range(self.num_layers))
        self._names: list[int | End] = ["embedding", *layers, "head"]
        self.seconds = cache(self._seconds)
        self.memory_bytes = cache(self._memory_bytes)
        self.params_bytes = tuple(query.costs.params_bytes(name) for name in self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _seconds(self, tp: int, mbs: int) -> tuple[float, ...]:
        """Forward and backward seconds of every piece for one micro-batch."""
        costs = self.query.costs
        layers = [costs.layer_time(i, tp, mbs, "both") for i in range(self.num_layers)]
        first, last = embedding_time(costs, tp, mbs, "both"), costs.head_time(tp, mbs, "both")
        return (first, *layers, last)

    def sums(self, tp: int, mbs: int) -> tuple[float, ...]:
        """Seconds of the pieces before each cut: a stage's are the difference of two."""
        return tuple(accumulate(self.seconds(tp, mbs), initial=0.0))

    def _memory_bytes(self, tp: int, mbs: int) -> tuple[float, ...]:
        """Bytes that a profiler sees of every piece on one GPU."""
        return tuple(
            layer_memory(
                self.query.costs,
                name,
                tp,
                mbs,
                num_layers=self.num_layers,
                techniques=self.query.techniques,
            )
            for name in self._names
        )

    def stages(self, cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return (first layer, number of layers) of each stage; stage i is cuts[i] to cuts[i+1]."""
        edges = [min(max(cut - 1, 0), self.num_layers) for cut in cuts]
        return tuple((a, b - a) for a, b in pairwise(edges))


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the cuts of pieces that give every stage as many layers, the first ones one more.

    Args:
        num_layers: transformer layers; the ends go to the first and the last stage.
        num_stages: at most num_layers.
    """
    share, more = divmod(num_layers, num_stages)
    inner = (1 + i * share + min(i, more) for i in range(1, num_stages))
    return (0, *inner, num_layers + 2)


def balanced_cuts(seconds: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return the cuts whose slowest stage is fastest; on a tie the earliest cut.

    Args:
        seconds: of each piece.
        num_stages: at least 1 and at most as many as pieces.
    """
    ends, n = [0.0, *accumulate(seconds)], len(seconds)
    slowest = [ends[n] - ends[i] for i in range(n + 1)]  # of the pieces from i on, on one stage
    chosen: list[list[int]] = []
    for left in range(2, num_stages + 1):
        best = [
            min((max(ends[k] - ends[i], slowest[k]), k) for k in range(i + 1, n - left + 2))
            for i in range(n - left + 1)
        ]
        slowest = [seconds for seconds, _ in best]
        chosen.append([k for _, k in best])
    cuts = [0]
    for cut in reversed(chosen):
        cuts.append(cut[cuts[-1]])
    return (*cuts, n)


def proportional_cuts(loads: Sequence[float], shares: Sequence[float]) -> tuple[int, ...]:
    """Return cuts that give every stage a load in proportion to its share, one piece at least.

    Args:
        loads: of each piece.
        shares: of each stage; at most as many as pieces.
    """
    ends, total = [0.0, *accumulate(loads)], sum(shares) or 1.0
    cuts, num_stages = [0], len(shares)
    for stage, share in enumerate(list(accumulate(shares))[:-1], start=1):
        target = ends[-1] * share / total
        room = range(cuts[-1] + 1, len(loads) - (num_stages - stage) + 1)
        cuts.append(min(room, key=lambda k: abs(ends[k] - target)))
    return (*cuts, len(loads))


def capped_shares(
    speeds: Sequence[float], caps: Mapping[int, float], total: float
) -> tuple[float, ...]:
    """Return the loads of stages: capped ones theirs, the others the rest by speed.

    Args:
        speeds: of each stage.
        caps: loads of the stages that may have no more.
        total: load of all.
    """
    rest = max(total - sum(caps.values()), 0.0)
    free = sum(speed for stage, speed in enumerate(speeds) if stage not in caps)
    return tuple(caps.get(stage, rest * speed / (free or 1)) for stage, speed in enumerate(speeds))


def first_gpus(degrees: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the first GPU of each stage and the end; stages take consecutive GPUs.

    Args:
        degrees: (dp, tp) of every stage.
    """
    return tuple(accumulate((dp * tp for dp, tp in degrees), initial=0))


def slowest_link(query: Query, first_gpu: int, end_gpu: int) -> LinkSpec:
    """Return the slowest link among consecutive GPUs ``first_gpu`` to ``end_gpu`` - 1."""
    node = query.gpus_per_node
    is_inside = first_gpu // node == (end_gpu - 1) // node
    return query.costs.link("intra_node" if is_inside else "inter_node")


def bytes_per_s(link: LinkSpec) -> float:
    """Return the rate that large messages reach on a link."""
    return link.bandwidth_gb_s * link.efficiency * 1e9
