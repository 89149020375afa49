"""An engine that trains a small linear model exactly and in microseconds, for runner tests."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cona.engine.base import Batch, EvalSums, StepStats
from cona.errors import DamageError

NUM_IDS = 512


class ToyEngine:
    """Unigram logits trained by gradient descent: real losses, real gradient statistics."""

    num_built = 0

    def __init__(self) -> None:
        type(self).num_built += 1
        self.logits = np.zeros(NUM_IDS)
        self.num_steps = 0

    def train_step(self, batch: Batch, *, exec_mbs: int, lr: float) -> StepStats:
        """Take one gradient step on the mean loss."""
        self.num_steps += 1
        parts = [batch[i : i + exec_mbs] for i in range(0, len(batch), exec_mbs)]
        gradients = np.stack([self._gradient(part) for part in parts])
        mean = gradients.mean(axis=0)
        nats = sum(self._nats(part) for part in parts)
        self.logits -= 50 * lr * mean
        return StepStats(
            loss_nats=nats,
            num_tokens=batch.labels.size,
            grad_norm=float(np.linalg.norm(mean)),
            sum_sq_microbatch=float((gradients**2).sum(axis=1).mean()),
            num_microbatches=len(parts),
            skipped=False,
        )

    def _log_probabilities(self) -> np.ndarray:
        return self.logits - np.log(np.exp(self.logits).sum())

    def _nats(self, batch: Batch) -> float:
        return float(-self._log_probabilities()[batch.labels].sum())

    def _gradient(self, batch: Batch) -> np.ndarray:
        counts = np.bincount(batch.labels.ravel(), minlength=NUM_IDS) / batch.labels.size
        return np.exp(self._log_probabilities()) - counts

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches."""
        nats, tokens = 0.0, 0
        for batch in batches:
            nats += self._nats(batch)
            tokens += batch.labels.size
        return EvalSums(nats=nats, num_tokens=tokens)

    def snapshot(self) -> Any:
        """Return a copy of the weights."""
        return self.logits.copy()

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""
        self.logits = snapshot.copy()

    def save(self, path: Path) -> None:
        """Write the weights."""
        path.write_bytes(pickle.dumps(self.logits))

    def load(self, path: Path) -> None:
        """Read the weights."""
        try:
            self.logits = pickle.loads(path.read_bytes())
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamageError(f"{path}: damaged") from error
