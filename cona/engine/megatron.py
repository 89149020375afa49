"""The engine: a megatron-core model, trained in one process.

One process executes any strategy's global batch, because the loss depends on the batch and not on
the layout. Source: architecture.md, Virtual cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cona.config import content_hash
from cona.engine import cpu
from cona.engine.base import Batch, EvalSums, StepStats
from cona.engine.checkpoint import EngineState, read_state, write_state
from cona.engine.flat import FlatAdamW, flatten, square_norm
from cona.engine.losses import IGNORED
from cona.engine.models import LanguageModel, build_model
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import divisors


def build_engine(model: ModelSpec, seed: int) -> MegatronEngine:
    """Build an engine on this process's device, with deterministic algorithms switched on.

    Args:
        model: the model; its dropout draws from the engine's own random stream.
        seed: of the initial weights and of that stream.

    Raises:
        ConfigError: megatron-core is of an untested version, or several processes run together.
    """
    cpu.make_deterministic()
    return MegatronEngine(model, build_model(model, seed), seed)


class MegatronEngine:
    """Implements ``cona.engine.base.Engine`` on one device, in float32."""

    def __init__(self, spec: ModelSpec, model: LanguageModel, seed: int) -> None:
        self.spec = spec
        self.device = cpu.device()
        self.model = model.to(self.device)
        self.optimizer = FlatAdamW(*flatten(self.model), spec.training)
        self._mean_gradient = torch.zeros_like(self.optimizer.gradient)
        self._rng = _seeded_rng(self.device, seed)

    def train_step(
        self, batch: Batch, *, exec_mbs: int, lr: float, gradient_statistics: bool = True
    ) -> StepStats:
        """Run one optimizer step over the whole batch.

        With K predicted tokens in the batch and k_i in micro-batch i, g_i is the gradient of the
        mean loss of micro-batch i and G = sum k_i/K g_i that of the batch.

        Args:
            batch: B samples.
            exec_mbs: samples per micro-batch; divides B.
            lr: learning rate.
            gradient_statistics: whether to measure sum k_i/K |g_i|^2.

        Raises:
            ConfigError: exec_mbs does not divide the batch, or the batch predicts no token.

        Source: method.md 2.
        """
        # A micro-batch in which nothing is masked has no gradient, and weight 0.
        parts = [part for part in split_batch(batch, exec_mbs) if part.loss_mask.any()]
        if not parts:
            raise ConfigError(f"a batch of {len(batch)} samples has no predicted token")
        num_tokens = int(batch.loss_mask.sum())
        measure = gradient_statistics and len(parts) > 1
        with self._random_stream():
            self.model.train()
            nats, sum_sq = self._accumulate(parts, num_tokens, measure)
            grad_norm, skipped = self.optimizer.update(lr)
        return StepStats(
            loss_nats=nats,
            num_tokens=num_tokens,
            grad_norm=grad_norm,
            sum_sq_microbatch=sum_sq if measure else None,
            num_microbatches=len(parts),
            skipped=skipped,
        )

    def _accumulate(
        self, parts: list[Batch], num_tokens: int, measure: bool
    ) -> tuple[float, float]:
        """Leave G in the gradient buffer; return its loss in nats and sum k_i/K |g_i|^2."""
        gradient, mean = self.optimizer.gradient, self._mean_gradient
        nats, sum_sq = 0.0, 0.0
        mean.zero_()
        gradient.zero_()
        for part in parts:
            nats += self._backward(part, num_tokens)
            if measure:  # the buffer holds k_i/K g_i alone
                sum_sq += square_norm(gradient) * num_tokens / int(part.loss_mask.sum())
                mean.add_(gradient)
                gradient.zero_()
        if measure:
            gradient.copy_(mean)
        return nats, sum_sq

    def _backward(self, part: Batch, num_tokens: int) -> float:
        """Add k_i/K g_i to the gradient buffer; return the micro-batch's loss in nats."""
        losses = self._losses(part)
        (losses.sum() / num_tokens).backward()
        return losses.detach().double().sum().item()

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches without changing any state.

        Args:
            batches: of any sizes; the sums do not depend on how samples are grouped (1e-6).
        """
        nats, num_tokens = 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for batch in batches:
                nats += self._losses(batch).double().sum().item()
                num_tokens += int(batch.loss_mask.sum())
        return EvalSums(nats=nats, num_tokens=num_tokens)

    def _losses(self, batch: Batch) -> Tensor:
        return self.model.losses(*to_device(batch, self.device))

    def snapshot(self) -> EngineState:
        """Return an in-memory copy of the full state."""
        return EngineState(flat=self.optimizer.copy_state(), rng=self._rng)

    def restore(self, snapshot: EngineState) -> None:
        """Go back to a snapshot, exactly."""
        self.optimizer.set_state(snapshot.flat)
        self._rng = snapshot.rng

    def save(self, path: Path) -> None:
        """Write the full state to one file, atomically."""
        write_state(path, self._fingerprint, self.snapshot())

    def load(self, path: Path) -> None:
        """Read the state written by ``save``.

        Raises:
            RunError: the file is missing, damaged, or belongs to another model.
        """
        self.restore(read_state(path, self._fingerprint))

    @property
    def _fingerprint(self) -> str:
        return state_fingerprint(self.spec)

    @contextmanager
    def _random_stream(self) -> Iterator[None]:
        """Draw from the engine's own stream, and leave the process's default one untouched."""
        outside = _get_rng(self.device)
        _set_rng(self.device, self._rng)
        try:
            yield
        finally:
            self._rng = _get_rng(self.device)
            _set_rng(self.device, outside)


def state_fingerprint(spec: ModelSpec) -> str:
    """Return what must agree for a state to be continued: all of a model but the prose."""
    prose = {"description", "source", "priced_as"}
    return f"{spec.name} {content_hash(spec.model_dump(mode='json', exclude=prose))}"


def to_device(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a batch's tokens and labels on a device; labels that do not count are ``IGNORED``."""
    labels = np.where(batch.loss_mask, batch.labels, IGNORED)
    return torch.from_numpy(batch.tokens).to(device), torch.from_numpy(labels).to(device)


def split_batch(batch: Batch, exec_mbs: int) -> list[Batch]:
    """Cut a batch into micro-batches; raises ConfigError where they do not divide it."""
    size = len(batch)
    if exec_mbs < 1 or size % exec_mbs:
        choice = min(divisors(size), key=lambda d: abs(d - exec_mbs))
        raise ConfigError(
            f"exec_mbs {exec_mbs} does not divide the batch of {size} samples; nearest: {choice}"
        )
    return [batch[start : start + exec_mbs] for start in range(0, size, exec_mbs)]


def _seeded_rng(device: torch.device, seed: int) -> Tensor:
    return torch.Generator(device).manual_seed(seed).get_state()


def _get_rng(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_rng(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
