"""Engines with a fault each, which the self-test must find."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import torch

from cona.engine.base import StepStats, Switched
from cona.engine.parallel import ParallelEngine
from cona.strategy import Layout


class ForgetsMoments(ParallelEngine):
    """Its live switch leaves Adam's moments behind."""

    def switch(self, layout: Layout) -> Switched:
        switched = super().switch(layout)
        for moment in list(self._stage.vectors().values())[1:]:
            moment.zero_()
        return switched


class CountsReplicasTwice(ParallelEngine):
    """Its gradient norm grows with the replicas."""

    def train_step(self, *args: Any, **options: Any) -> StepStats:
        stats = super().train_step(*args, **options)
        return replace(stats, grad_norm=stats.grad_norm * self.layout.dp**0.5)


class BreaksOnPipelines(ParallelEngine):
    """It fails on one rank, which the other waits for."""

    def train_step(self, *args: Any, **options: Any) -> StepStats:
        if self.layout.pp > 1 and self.rank == 1:
            raise RuntimeError("no second stage here")
        return super().train_step(*args, **options)


class Diverges(ParallelEngine):
    """Its losses are not numbers."""

    def train_step(self, *args: Any, **options: Any) -> StepStats:
        self._stage.optimizer.weights.fill_(torch.nan)
        self._stage.refresh()
        return super().train_step(*args, **options)


class Dies(ParallelEngine):
    """Its second rank is killed, as for want of memory."""

    def train_step(self, *args: Any, **options: Any) -> StepStats:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(*args, **options)
