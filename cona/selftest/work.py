"""What one rank of the self-test does; every rank of a launch calls the same generator."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cona.engine.base import StepStats
from cona.engine.megatron import build_engine
from cona.engine.stage import Numerics
from cona.selftest.cases import LR, MBS, SEED, Case, batches, small_model


def single_process(family: str, nproc: int) -> Iterator[list[StepStats]]:
    """Yield the whole run of the engine that knows no parallelism, in float32."""
    spec = small_model(family, nproc)
    engine = build_engine(spec, SEED)
    yield [engine.train_step(batch, exec_mbs=MBS, lr=LR) for batch in batches(spec)]


def on_ranks(engine: str, cases: Sequence[Case], nproc: int) -> Iterator[list[StepStats]]:
    """Yield the run of each case.

    Args:
        engine: ``module:name`` of the class, called like ``cona.engine.parallel.ParallelEngine``.
        cases: of one family and number of ranks.
        nproc: ranks of the largest launch.
    """
    module, _, name = engine.partition(":")
    engine_class: Callable[..., Any] = getattr(importlib.import_module(module), name)
    for case in cases:
        yield _run(engine_class, case, nproc)


def _run(engine_class: Callable[..., Any], case: Case, nproc: int) -> list[StepStats]:
    spec = small_model(case.family, nproc)
    engine = engine_class(spec, case.layout_at(0), SEED, Numerics(precision=case.precision))
    stats = []
    for step, batch in enumerate(batches(spec)[: case.num_steps]):
        if case.layout_at(step) != engine.layout:
            engine.switch(case.layout_at(step))
        stats.append(engine.train_step(batch, exec_mbs=MBS, lr=LR))
    return stats
