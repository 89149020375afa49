"""Partitions of a chain, against every pipeline there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cona.planners.partition import Chain, Partition, StageOption, Step
from cona.planners.submeshes import cuts, smallest_stage, submeshes

OPTIONS = (
    StageOption(dp=1, tp=1),
    StageOption(dp=2, tp=1),
    StageOption(dp=1, tp=2),
    StageOption(dp=3, tp=1),
)
BY_REPLICAS = tuple(StageOption(dp=o.dp, tp=o.tp, weight=o.dp) for o in OPTIONS)


def every_pipeline(question: Partition) -> Iterator[list[Step]]:
    """Every sequence of stages that uses up cuts and GPUs, within the largest weight."""
    end = question.num_cuts - 1
    for num_stages in range(1, end + 1):
        for inner in itertools.combinations(range(1, end), num_stages - 1):
            edges = (0, *inner, end)
            for chosen in itertools.product(range(len(question.options)), repeat=num_stages):
                options = [question.options[i] for i in chosen]
                to_come = [sum(o.weight for o in options[i:]) for i in range(num_stages)]
                if sum(o.num_gpus for o in options) != question.num_gpus:
                    continue
                if to_come[0] <= question.max_weight:
                    yield [
                        Step(
                            first=edges[i], last=edges[i + 1], option=chosen[i], to_come=to_come[i]
                        )
                        for i in range(num_stages)
                    ]


def stage_times(question: Partition, steps: list[Step]) -> list[tuple[float, float]]:
    found = []
    for step in steps:
        seconds, once = question.prices(step.option, step.to_come)
        at = step.first, step.last
        found.append((seconds[at], once if isinstance(once, float) else once[at]))
    return found


def total(times: list[tuple[float, float]]) -> float:
    """sum t + max(once_i - sum_{j<i} t_j), as Mist states it; sum t without anything once."""
    before, waits = 0.0, []
    for seconds, once in times:
        waits.append(once - before)
        before += seconds
    return before + max(waits)


@st.composite
def partitions(draw: st.DrawFn, *, with_once: bool = True) -> Partition:
    size = draw(st.integers(2, 4))
    options = draw(st.sampled_from((OPTIONS, BY_REPLICAS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (len(options), 6, size, size)  # what a stage takes may depend on what is to come
    seconds = rng.integers(1, 9, shape).astype(float)
    seconds[rng.random(shape) < draw(st.sampled_from((0.0, 0.4)))] = np.inf
    is_stage = np.triu(np.ones((size, size), bool), 1)
    seconds = np.where(is_stage, seconds, np.inf)
    once = rng.integers(0, 20, shape).astype(float)

    def prices(option: int, to_come: int):
        return seconds[option, to_come], once[option, to_come] if with_once else 0.0

    return Partition(
        options=options,
        prices=prices,
        num_cuts=size,
        num_gpus=draw(st.integers(1, 5)),
        max_weight=5,
    )


def agrees(found: Chain | None, expected: float) -> None:
    assert (found is None) == math.isinf(expected)
    if found:
        assert found.cost == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(question=partitions(), slowest_s=st.sampled_from((math.inf, 6.0, 3.0)))
def test_total_is_the_least_of_all_pipelines(question: Partition, slowest_s: float) -> None:
    timed = [stage_times(question, steps) for steps in every_pipeline(question)]
    within = [times for times in timed if max(t for t, _ in times) <= slowest_s]
    expected = min((total(times) for times in within), default=math.inf)
    found = question.best("total", slowest_s=slowest_s)
    agrees(found, expected)
    if found:  # and its stages are a pipeline that costs that
        steps = list(found.steps)
        assert steps in list(every_pipeline(question))
        assert total(stage_times(question, steps)) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(question=partitions())
def test_bottleneck_is_the_least_of_all_pipelines(question: Partition) -> None:
    timed = [stage_times(question, steps) for steps in every_pipeline(question)]
    expected = min((max(t for t, _ in times) for times in timed), default=math.inf)
    found = question.best("bottleneck")
    agrees(found, expected)
    if found:
        assert list(found.steps) in list(every_pipeline(question))


@settings(max_examples=60, deadline=None)
@given(question=partitions(), m=st.sampled_from((1, 2, 5)), with_limit=st.booleans())
def test_the_fastest_of_all_bounds_is_the_fastest(
    question: Partition, m: int, with_limit: bool
) -> None:
    def time_s(times: list[tuple[float, float]]) -> float:
        return (m - 1) * max(t for t, _ in times) + total(times)

    timed = [stage_times(question, steps) for steps in every_pipeline(question)]
    fits = [times for times in timed if all(math.isfinite(t) for t, _ in times)]
    expected = min(map(time_s, fits), default=math.inf)
    limit = expected + 0.5 if with_limit else math.inf
    found = list(question.by_bottleneck(m, at_most_s=limit))
    if math.isinf(expected):
        assert not found
    else:
        assert min(seconds for seconds, _ in found) == pytest.approx(expected)
        for seconds, chain in found:  # every pipeline states its own time
            assert seconds == pytest.approx(time_s(stage_times(question, list(chain.steps))))


@given(times=st.lists(st.tuples(st.floats(0, 9), st.floats(0, 30)), min_size=1, max_size=6))
def test_two_forms_of_the_same_objective(times: list[tuple[float, float]]) -> None:
    # max_i (once_i + sum_{j >= i} t_j), the form that is built from front to back
    folded = 0.0
    for seconds, once in times:
        folded = seconds + max(folded, once)
    assert total(times) == pytest.approx(folded)


def test_submeshes_are_powers_of_two_or_whole_nodes() -> None:
    assert submeshes(4, 2) == (1, 2, 4)
    assert submeshes(24, 8) == (1, 2, 4, 8, 16, 24)
    assert submeshes(2, 8) == (1, 2)
    assert submeshes(12, 6) == (1, 2, 4, 6, 12)
    assert submeshes(80, 8)[:4] == (2, 4, 8, 16)  # a 64th of 80 is more than one
    assert submeshes(80, 8)[-3:] == (32, 64, 80)


@given(gpus=st.integers(1, 300), node=st.integers(1, 16))
def test_every_submesh_is_large_enough_and_all_gpus_can_be_one(gpus: int, node: int) -> None:
    sizes = submeshes(gpus * node, node)
    assert sizes[-1] == gpus * node
    assert list(sizes) == sorted(set(sizes))
    assert smallest_stage(gpus * node) <= sizes[0]


def test_cuts() -> None:
    assert cuts(4, 32) == (0, 1, 2, 3, 4)
    assert cuts(7, 3) == (0, 3, 6, 7)
