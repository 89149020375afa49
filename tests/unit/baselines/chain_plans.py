"""Every plan of a small chain, priced from scratch, to compare planners with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chain_costs import ChainCosts
from hypothesis import strategies as st

from cona.planners import Query


@dataclass(frozen=True)
class Stage:
    """Layers [first, last) under (dp, tp), with the replicas of it and all later stages."""

    first: int
    last: int
    dp: int
    tp: int
    index: int
    num_stages: int
    replicas_to_come: int


def every_plan(query: Query) -> Iterator[tuple[Stage, ...]]:
    """Every sequence of stages with degrees out of 1, 2 and 4 that uses up layers and GPUs."""
    num_layers, num_gpus = query.model.num_layers, query.num_gpus
    degrees = [(dp, tp) for dp in (1, 2, 4) for tp in (1, 2, 4) if query.allows_tp(tp)]
    for num_stages in range(1, num_layers + 1):
        for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
            edges = (0, *inner, num_layers)
            for chosen in itertools.product(degrees, repeat=num_stages):
                if sum(dp * tp for dp, tp in chosen) == num_gpus:
                    yield tuple(
                        Stage(
                            edges[i],
                            edges[i + 1],
                            *chosen[i],
                            i,
                            num_stages,
                            sum(dp for dp, _ in chosen[i:]),
                        )
                        for i in range(num_stages)
                    )


def stage_seconds(
    query: Query, stage: Stage, mbs: int, in_flight: int, *, may_recompute: bool
) -> float:
    """Seconds of a micro-batch with the fewest recomputed layers that fit; infinite: none do."""
    costs = query.costs
    assert isinstance(costs, ChainCosts)
    layers = range(stage.first, stage.last)
    is_last = stage.last == query.model.num_layers
    seconds = sum(costs.layer_time(i, stage.tp, mbs, "both") for i in layers)
    seconds += costs.head_time(stage.tp, mbs, "both") if is_last else 0.0
    ends = costs.ends[0] * (stage.first == 0) + costs.ends[1] * is_last
    forward = sorted(costs.layer_time(i, stage.tp, mbs, "forward") for i in layers)
    for n in range(len(layers) + 1 if may_recompute else 1):
        kept = costs.kept * mbs * in_flight * (len(layers) - 0.75 * n)
        memory = costs.base + (len(layers) * costs.state + kept + ends) / stage.tp
        if memory <= query.gpu_memory_bytes * (1 + 1e-12):
            return seconds + sum(forward[:n])
    return float("inf")


def pipeline_time(
    query: Query,
    stages: tuple[Stage, ...],
    samples: int,
    *,
    may_recompute: bool,
    once_s: Callable[[Stage], float],
) -> float:
    """T = (m-1) max t + sum t + max_i (once_i - sum_{j<i} t_j); infinite: it does not exist."""
    m, times = query.gbs // samples, []
    for stage in stages:
        if samples % stage.dp:
            return float("inf")
        in_flight = min(stage.num_stages - stage.index, m)
        mbs = samples // stage.dp
        times.append(stage_seconds(query, stage, mbs, in_flight, may_recompute=may_recompute))
    if float("inf") in times:
        return float("inf")
    waits = [once_s(stage) - sum(times[: stage.index]) for stage in stages]
    return (m - 1) * max(times) + sum(times) + max(waits)


chains = st.builds(
    ChainCosts,
    forward_s=st.tuples(*[st.integers(1, 4).map(float)] * 4),
    head_s=st.sampled_from((0.0, 2.0, 6.0)),
    fixed_s=st.sampled_from((0.0, 0.5)),
    optimizer_s=st.sampled_from((0.0, 8.0)),
    bandwidth=st.sampled_from((300.0, 1e4)),
    base=st.sampled_from((0.0, 10.0)),
    state=st.sampled_from((0.0, 20.0)),
    kept=st.sampled_from((1.0, 5.0)),
    ends=st.sampled_from(((0.0, 0.0), (7.0, 3.0))),
)
"""Chains of four layers that differ in time."""
