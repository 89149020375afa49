"""What one rank of ``gns_overhead.py`` does: it times an engine with three ways of counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from cona.config import load, override
from cona.engine.flat import square_norm
from cona.engine.megatron import build_engine
from cona.engine.parallel import ParallelEngine
from cona.selftest.cases import batches
from cona.specs import ModelSpec
from cona.strategy import Layout

SHAPE = {"num_layers": 4, "hidden_size": 256, "num_heads": 8, "num_kv_heads": 8, "ffn_size": 1024}
MBS, LR, SEED = 2, 1e-3, 0
WAYS = ("without", "ours", "peer")


def goal_model() -> ModelSpec:
    """Return the step benchmark's GPT: 4 layers x 256, sequences of 128 tokens."""
    proxy = load(ModelSpec, "gpt3-1.3b-proxy")
    return override(proxy, {**SHAPE, "name": "goal-gpt", "seq_length": 128})


Seconds = tuple[float, float]
"""Of the wall, and of this rank's processor."""


def measure(layout: Layout | None, repeats: int) -> Iterator[dict[str, list[Seconds]]]:
    """Yield the seconds of the three ways, iteration by iteration in turn, without two rounds.

    Args:
        layout: of the parallel engine; None: the engine for one process.
        repeats: rounds.
    """
    spec = goal_model()
    engine = ParallelEngine(spec, layout, SEED) if layout else build_engine(spec, SEED)
    contexts = {"without": nullcontext(), "ours": nullcontext(), "peer": peer(engine, layout)}
    batch = batches(spec)[0]

    def step_s(way: str) -> Seconds:
        with contexts[way]:
            start_s, start_busy_s = time.perf_counter(), time.process_time()
            engine.train_step(batch, exec_mbs=MBS, lr=LR, gradient_statistics=way == "ours")
            return time.perf_counter() - start_s, time.process_time() - start_busy_s

    rounds = [{way: step_s(way) for way in WAYS} for _ in range(repeats + 2)][2:]
    yield {way: [one[way] for one in rounds] for way in WAYS}


def peer(engine: Any, layout: Layout | None) -> AbstractContextManager[Any]:
    """Return the context in which an engine counts in the peer's way, at its cheapest.

    One pass over the flat gradient buffer stands for the peer's hooks on every parameter.
    """
    holder, name = (engine._stage, "reduce_gradient") if layout else (engine.optimizer, "update")
    reduce = getattr(holder, name)
    gradient = (engine._stage.optimizer if layout else engine.optimizer).gradient
    count = per_replica if layout and layout.dp > 1 else successive
    return mock.patch.object(holder, name, count(gradient, reduce))


def per_replica(gradient: torch.Tensor, reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Take each replica's square norm before the all-reduce; the engine takes the mean's."""

    def counted(*args: Any) -> Any:
        share_over_ranks(square_norm(gradient))
        return reduce(*args)

    return counted


def successive(gradient: torch.Tensor, reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Take the square norm of the difference of two iterations' gradients."""
    last, difference = torch.zeros_like(gradient), torch.empty_like(gradient)

    def counted(*args: Any) -> Any:
        torch.sub(gradient, last, out=difference)
        share_over_ranks(square_norm(difference))
        last.copy_(gradient)
        return reduce(*args)

    return counted


def share_over_ranks(value: float) -> None:
    """Add up a scalar over all ranks."""
    dist.all_reduce(torch.tensor([value], dtype=torch.float64))
