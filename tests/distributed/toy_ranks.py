"""`cona` with a toy engine on real ranks: unigram logits, sharded over all ranks, gloo all-reduce.

Run as a program it is the `cona` command; the launcher starts it again, once per rank. Environment:
TOY_SLEEP_S makes iterations long enough to be killed; TOY_SIGNALS is a folder in which rank k
leaves its process id and what it is doing; TOY_SWITCH, e.g. `20:dp1-tp1-pp2-mbs4-gbs8`, makes
`fixed-best` change its strategy after an iteration; TOY_ENGINE=megatron takes the real engine.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from baselines.fixed_best import FixedBest
from cona.engine import factory
from cona.engine.base import Batch, EvalSums, StepStats, Switched
from cona.errors import ConfigError, DamageError
from cona.policy import Decision, Observation
from cona.strategy import Layout, Strategy

NUM_IDS = 512


def says(rank: int, what: str) -> None:
    """Tell the test what a rank is doing, and give it time to interfere."""
    if folder := os.environ.get("TOY_SIGNALS"):
        path = Path(folder) / f"rank{rank}.{os.getpid()}"
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
    longer = 20 if what == "switch" else 1
    time.sleep(longer * float(os.environ.get("TOY_SLEEP_S", "0")))


class ToyRanks:
    """Implements ``cona.engine.base.LiveEngine``; each rank holds a share of the weights."""

    def __init__(self, layout: Layout) -> None:
        if layout.num_gpus != dist.get_world_size():
            raise ConfigError(f"layout {layout} does not fit {dist.get_world_size()} ranks")
        self.layout = layout
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.weights = torch.zeros(NUM_IDS // self.size, dtype=torch.float64)
        self.says("ready")

    def says(self, what: str) -> None:
        """Tell the test what this rank is doing, and give it time to interfere."""
        says(self.rank, what)

    def whole(self) -> np.ndarray:
        """Gather the weights of all ranks."""
        parts = [torch.zeros_like(self.weights) for _ in range(self.size)]
        dist.all_gather(parts, self.weights)
        return torch.cat(parts).numpy()

    def train_step(self, batch: Batch, *, exec_mbs: int, lr: float) -> StepStats:
        """Take one gradient step; every rank computes the share of the samples that it is dealt."""
        began_s = time.perf_counter()
        self.says("step")
        logits = self.whole()
        half = max(1, len(batch) // 2)  # two micro-batches whatever the layout
        parts = [batch[:half], batch[half:]]
        gradients = np.stack([self._gradient(logits, part) for part in parts])
        gradient = gradients.mean(axis=0)
        nats = self._nats(logits, batch)
        mine = slice(self.rank * len(self.weights), (self.rank + 1) * len(self.weights))
        self.weights -= torch.from_numpy(50 * lr * gradient[mine])
        seconds = torch.tensor(time.perf_counter() - began_s)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return StepStats(
            loss_nats=nats,
            num_tokens=batch.labels.size,
            grad_norm=float(np.linalg.norm(gradient)),
            sum_sq_microbatch=float((gradients**2).sum(axis=1).mean()),
            num_microbatches=2,
            skipped=False,
            seconds=seconds.item(),
        )

    def _gradient(self, logits: np.ndarray, batch: Batch) -> np.ndarray:
        mine = torch.from_numpy(np.bincount(self._dealt(batch), minlength=NUM_IDS).astype(float))
        dist.all_reduce(mine)
        return np.exp(logits - np.log(np.exp(logits).sum())) - mine.numpy() / batch.labels.size

    def _dealt(self, batch: Batch) -> np.ndarray:
        return batch.labels.ravel()[self.rank :: self.size]

    def _nats(self, logits: np.ndarray, batch: Batch) -> float:
        return float((np.log(np.exp(logits).sum()) - logits[batch.labels]).sum())

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches."""
        logits, nats, tokens = self.whole(), 0.0, 0
        for batch in batches:
            nats += self._nats(logits, batch)
            tokens += batch.labels.size
        return EvalSums(nats=nats, num_tokens=tokens)

    def switch(self, layout: Layout) -> Switched:
        """Go over to another layout; the shards stay where they are."""
        began_s = time.perf_counter()
        self.says("switch")
        dist.barrier()
        self.layout = layout
        seconds = time.perf_counter() - began_s
        return Switched(seconds=seconds, moved_bytes=0, needed_bytes=0)

    def snapshot(self) -> Any:
        """Return a copy of this rank's weights, and the layout."""
        return self.layout, self.weights.clone()

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy, in its layout."""
        self.layout, weights = snapshot
        self.weights = weights.clone()

    def save(self, path: Path) -> None:
        """Write the weights into a folder."""
        logits = self.whole()
        if self.rank == 0:
            path.mkdir()
            (path / "state").write_bytes(pickle.dumps(logits))
        dist.barrier()

    def load(self, path: Path) -> None:
        """Read this rank's share of the weights."""
        try:
            logits = pickle.loads((path / "state").read_bytes())
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamageError(f"{path}: damaged") from error
        self.weights = torch.from_numpy(logits).chunk(self.size)[self.rank].clone()


def build(model: Any, layout: Layout, **options: Any) -> ToyRanks:
    """Stand in for ``cona.engine.factory.build_live_engine``."""
    return ToyRanks(layout)


def build_megatron(model: Any, layout: Layout, *, seed: int, **options: Any) -> Any:
    """Build the real engine, which tells the test what it is doing as well."""
    from cona.engine.parallel import ParallelEngine

    class Talking(ParallelEngine):
        def train_step(self, batch: Batch, **options: Any) -> StepStats:
            says(self.rank, "step")
            return super().train_step(batch, **options)

        def switch(self, layout: Layout) -> Switched:
            says(self.rank, "switch")
            return super().switch(layout)

    return Talking(model, layout, seed)


def switch_once(at: int, strategy: Strategy) -> None:
    """Make `fixed-best` change its strategy after an iteration."""

    def decide(self: FixedBest, seen: Observation) -> Decision:
        new = strategy if seen.iteration == at else None
        return Decision(strategy=new, reason="asked for", quiet=new is None)

    FixedBest.decide = decide  # type: ignore[method-assign]


if __name__ == "__main__":
    is_real = os.environ.get("TOY_ENGINE") == "megatron"
    factory.build_live_engine = build_megatron if is_real else build  # type: ignore[assignment]
    if wanted := os.environ.get("TOY_SWITCH"):
        iteration, _, name = wanted.partition(":")
        switch_once(int(iteration), Strategy.parse(name))
    from cona.cli import main

    main()
