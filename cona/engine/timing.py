"""The measured clock's stopwatch."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from cona.engine import cpu


class StepTimer:
    """Wall seconds between two points that all ranks have reached.

    On a GPU by events on its stream, on the CPU by barriers.
    """

    def __init__(self) -> None:
        dist.barrier()
        self._events: tuple[Any, Any] | None = None
        if torch.cuda.is_available():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self._events = (start, stop)
        self._start_s = time.perf_counter()

    def stop(self) -> float:
        """Return the slowest rank's seconds, the same on every rank."""
        if self._events is not None:
            start, stop = self._events
            stop.record()
            stop.synchronize()
            mine = start.elapsed_time(stop) / 1000
        else:
            mine = time.perf_counter() - self._start_s
        slowest = torch.tensor([mine], dtype=torch.float64, device=cpu.device())
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()
