"""The contract between the runner and whatever executes training steps.

Source: architecture.md, Contracts. An engine knows nothing of clocks, policies or files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cona.strategy import Layout


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples of one iteration or one evaluation step; a sample is one sequence."""

    tokens: NDArray[np.int64]
    """Input token ids, shape [samples, seq]."""
    labels: NDArray[np.int64]
    """Target token ids, shape [samples, seq]; arbitrary where the mask is 0."""
    loss_mask: NDArray[np.bool_]
    """Which targets count, shape [samples, seq]: all for causal models, the masked for BERT."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(
            tokens=self.tokens[rows], labels=self.labels[rows], loss_mask=self.loss_mask[rows]
        )


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What one optimizer step saw (before clipping). Source: method.md 2."""

    loss_nats: float
    """Sum of the loss over predicted tokens, in nats, accumulated in float64."""
    num_tokens: int
    """Predicted tokens K."""
    grad_norm: float
    """|G|, the global gradient norm before clipping."""
    sum_sq_microbatch: float | None
    """mean_i |g_i|^2, weighted by k_i/K; None where it was not measured (one micro-batch)."""
    num_microbatches: int
    """n: micro-batches whose gradients were measured."""
    skipped: bool
    """The update was skipped (non-finite gradient)."""
    seconds: float | None = None
    """Wall seconds of the iteration on the slowest rank; None on the virtual cluster."""


@dataclass(frozen=True, kw_only=True)
class EvalSums:
    """Totals of one evaluation; perplexity = exp(nats / num_tokens)."""

    nats: float
    """Sum of the loss over predicted tokens, float64."""
    num_tokens: int
    """Predicted tokens."""


class Engine(Protocol):
    """Executes training; the state is weights, optimizer moments, step count and RNG."""

    def train_step(self, batch: Batch, *, exec_mbs: int, lr: float) -> StepStats:
        """Run one optimizer step over the whole batch in micro-batches of ``exec_mbs`` samples."""

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches without changing any state."""

    def snapshot(self) -> Any:
        """Return an in-memory copy of the full state."""

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, exactly."""

    def save(self, path: Path) -> None:
        """Write the full state to one file, atomically."""

    def load(self, path: Path) -> None:
        """Read the state written by ``save``; raises RunError if it belongs to another model."""


@dataclass(frozen=True, kw_only=True)
class Switched:
    """What a live switch of layout cost, over all ranks together."""

    seconds: float
    """Wall seconds on the slowest rank."""
    moved_bytes: int
    """Bytes that ranks sent to each other."""
    needed_bytes: int
    """Bytes of their new shards that ranks did not hold: the least that must move."""


class LiveEngine(Engine, Protocol):
    """An engine on real ranks: every rank calls the same method with the same arguments.

    ``train_step``'s ``exec_mbs`` is the micro-batch of every replica; ``save`` and ``load`` take a
    folder on a file system that all ranks share. A ConaError is raised on every rank or on none;
    any other exception ends the rank, and with it the others.
    """

    @property
    def layout(self) -> Layout:
        """The layout in force."""

    def switch(self, layout: Layout) -> Switched:
        """Go over to another layout of the same ranks; the training state is the same afterwards.

        Raises:
            ConfigError: the layout does not fit the ranks or the model; nothing has changed.
        """
