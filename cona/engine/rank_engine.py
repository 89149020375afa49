"""What engines on real ranks share: weights to begin with, dropout, and the frame of a step.

How gradients are computed, reduced and applied, and how a layout is changed, is each engine's own.
Source: architecture.md, Contracts; method.md 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from cona.engine import cpu
from cona.engine.base import Batch, EvalSums, StepStats
from cona.engine.gradient_statistics import GradientStatistics
from cona.engine.groups import GroupCache
from cona.engine.megatron import state_fingerprint
from cona.engine.models import initial_model
from cona.engine.sharded_checkpoint import save_checkpoint
from cona.engine.shards import Shard
from cona.engine.shares import micro_batches, share
from cona.engine.stage import Numerics
from cona.engine.timing import StepTimer
from cona.errors import ConfigError
from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Layout, StrategySpace

EVALUATION_MBS = 8
"""Sequences of one evaluation micro-batch, at most."""


@dataclass(frozen=True, kw_only=True)
class RankState:
    """A copy of everything that training changes on one rank."""

    layout: Layout
    """The layout that it belongs to."""
    vectors: dict[str, Tensor]
    """Weights and moments by name, flat."""
    scalars: dict[str, Any]
    """The same on every rank: number of updates, random stream, loss scale."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update did, the same on every rank."""

    loss_nats: float
    """Sum of the batch's loss over predicted tokens, in nats."""
    sum_sq: float
    """sum k_i/K |g_i|^2; 0 where it was not measured."""
    grad_norm: float
    """|G|, before clipping."""
    applied: bool
    """The gradient was finite."""


class RankStage(Protocol):
    """One rank's part of a model under one layout, as far as every engine sees it."""

    statistics: GradientStatistics

    @property
    def layout(self) -> Layout:
        """The layout."""

    @property
    def starts(self) -> Mapping[Shard, int]:
        """Where each shard stands in the flat vectors, in their order."""

    def vectors(self) -> dict[str, Tensor]:
        """Return weights and moments by name, shapes [parameters], float32."""


StageT = TypeVar("StageT", bound=RankStage)


class RankEngine(ABC, Generic[StageT]):
    """Part of a ``cona.engine.base.LiveEngine`` over all ranks of the world.

    Args:
        spec: the model.
        seed: of dropout.
        numerics: precision and recomputation.
    """

    _stage: StageT

    def __init__(self, spec: ModelSpec, seed: int, numerics: Numerics | None) -> None:
        cpu.install()
        cpu.make_deterministic()
        self.spec, self.numerics = spec, numerics or Numerics()
        self.rank = dist.get_rank()
        self._groups = GroupCache()
        self._random = torch.Generator().manual_seed(seed)

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return self._stage.layout

    @property
    def num_groups(self) -> int:
        """Process groups that the layouts so far have made."""
        return self._groups.num_groups

    def _initial_pieces(self, seed: int) -> Iterator[Tensor]:
        """Cut this rank's shards, flat, out of the model that the single process builds."""
        self._groups.activate(Layout(dp=dist.get_world_size(), tp=1, pp=1))
        whole = dict(initial_model(self.spec, seed).named_parameters())
        self._groups.activate(self.layout)
        for shard in self._stage.starts:
            box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.shape, strict=True))
            yield whole[shard.name].detach().view(shard.global_shape)[box].flatten()

    def train_step(
        self, batch: Batch, *, exec_mbs: int, lr: float, gradient_statistics: bool = True
    ) -> StepStats:
        """Run one optimizer step over the whole batch, which every rank passes.

        Args:
            batch: B samples; replica d takes the d-th share of them.
            exec_mbs: samples per micro-batch of a replica.
            lr: learning rate.
            gradient_statistics: whether to measure sum k_i/K |g_i|^2.

        Raises:
            ConfigError: dp * exec_mbs does not divide the batch, or it predicts no token.

        Source: method.md 2.
        """
        num_tokens = int(batch.loss_mask.sum())
        if not num_tokens:
            raise ConfigError(f"a batch of {len(batch)} samples has no predicted token")
        parts = micro_batches(batch, self.layout.dp, exec_mbs)
        num_measured = sum(bool(part.loss_mask.any()) for part in parts)
        measure = gradient_statistics and num_measured > 1
        timer = StepTimer()
        mine = share(parts, self.layout.dp, parallel_state.get_data_parallel_rank())
        update = self._update(mine, num_tokens, lr=lr, measure=measure)
        return StepStats(
            loss_nats=update.loss_nats,
            num_tokens=num_tokens,
            grad_norm=update.grad_norm,
            sum_sq_microbatch=update.sum_sq if measure else None,
            num_microbatches=num_measured,
            skipped=not update.applied,
            seconds=timer.stop(),
        )

    @abstractmethod
    def _update(self, parts: list[Batch], num_tokens: int, *, lr: float, measure: bool) -> Update:
        """Compute, reduce and apply the gradient of a whole batch.

        Args:
            parts: this replica's micro-batches.
            num_tokens: K, predicted tokens of the whole batch.
            lr: learning rate.
            measure: whether to measure sum k_i/K |g_i|^2.
        """

    def _start_statistics(self, parts: Sequence[Batch]) -> None:
        counts = [int(part.loss_mask.sum()) for part in parts]
        self._stage.statistics.start(counts, [part.tokens for part in parts])

    @contextmanager
    def _random_streams(self) -> Iterator[None]:
        """Give every replica and stage a stream of its own for dropout, drawn anew each iteration.

        What is drawn from is the same on every rank, so that it survives any change of layout.
        """
        drawn = int(torch.randint(2**62, (), generator=self._random))
        place = self.rank // self.layout.tp  # ranks that share a layer's weights share its dropout
        devices = [] if cpu.device().type == "cpu" else [cpu.device()]
        with torch.random.fork_rng(devices):
            torch.manual_seed(drawn + place)
            yield

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches, which every rank passes, without changing any state.

        Args:
            batches: of any sizes; the sums do not depend on how samples are grouped (1e-6).
        """
        nats, num_tokens = 0.0, 0
        for batch in batches:
            num_tokens += int(batch.loss_mask.sum())
            for part in self._evaluate(batch):
                nats += part
        (total,) = sum_over_ranks(nats)
        return EvalSums(nats=total, num_tokens=num_tokens)

    @abstractmethod
    def _evaluate(self, batch: Batch) -> Iterator[float]:
        """Yield parts of a batch's loss in nats; those of all ranks add up to the whole."""

    @abstractmethod
    def _scalars(self) -> dict[str, Any]:
        """Return the part of the state that is the same on every rank."""

    def save(self, path: Path) -> None:
        """Write the full state to a folder, which any layout and any world can load."""
        fingerprint, stage = state_fingerprint(self.spec), self._stage
        save_checkpoint(path, fingerprint, stage.starts, stage.vectors(), self._scalars())


def check_layout(spec: ModelSpec, layout: Layout) -> None:
    """Raise ConfigError unless a layout has as many ranks as the world and divides the model."""
    space = StrategySpace(model=spec, num_gpus=dist.get_world_size(), ladder=LadderSpec())
    if broken := space.why_not_layout(layout):
        valid = ", ".join(map(str, space.layouts))
        raise ConfigError(f"layout {layout} on {space.num_gpus} ranks: {broken}; valid: {valid}")


def sum_over_ranks(*values: float) -> list[float]:
    """Return the sums of some numbers over all ranks, in float64."""
    totals = torch.tensor(values, dtype=torch.float64, device=cpu.device())
    dist.all_reduce(totals)
    return totals.tolist()
