"""The engine on real ranks: dp x tp x pp with megatron-core, and the live switch between layouts.

Every rank of a ``torch.distributed`` world holds one of these and calls the same method with the
same arguments. Source: architecture.md, Contracts; method.md 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from cona.engine import cpu
from cona.engine.base import Batch, Switched
from cona.engine.megatron import state_fingerprint, to_device
from cona.engine.rank_engine import (
    EVALUATION_MBS,
    RankEngine,
    RankState,
    Update,
    check_layout,
    sum_over_ranks,
)
from cona.engine.reshard import Moved, move, plan
from cona.engine.sharded_checkpoint import load_checkpoint
from cona.engine.shares import evaluation_share
from cona.engine.stage import Numerics, Stage
from cona.engine.timing import StepTimer
from cona.specs import ModelSpec
from cona.strategy import Layout

INITIAL_LOSS_SCALE = 2.0**12
"""The paper's, method.md 6."""

LOSS_SCALE_INTERVAL = 1000
"""ASSUMED: iterations without overflow after which the loss scale doubles (Megatron's default)."""


class ParallelEngine(RankEngine[Stage]):
    """Implements ``cona.engine.base.LiveEngine`` over all ranks of the world.

    Args:
        spec: the model.
        layout: the first layout; dp*tp*pp is the number of ranks.
        seed: of the initial weights, which are the single-process engine's, and of dropout.
        numerics: precision and recomputation.

    Raises:
        ConfigError: the layout does not fit the world or the model.
    """

    def __init__(
        self, spec: ModelSpec, layout: Layout, seed: int, numerics: Numerics | None = None
    ) -> None:
        super().__init__(spec, seed, numerics)
        self._scaler = self._loss_scaler()
        self._stage = self._build(layout)
        self._set_initial_weights(seed)

    def _build(self, layout: Layout) -> Stage:
        check_layout(self.spec, layout)
        self._groups.activate(layout)
        return Stage(self.spec, layout, self.numerics)

    def _loss_scaler(self) -> DynamicGradScaler | None:
        if self.numerics.precision != "fp16":
            return None
        with cpu.megatron_on_this_device():
            return DynamicGradScaler(
                initial_scale=INITIAL_LOSS_SCALE,
                min_scale=1.0,
                growth_factor=2.0,
                backoff_factor=0.5,
                growth_interval=LOSS_SCALE_INTERVAL,
                hysteresis=2,
            )

    def _set_initial_weights(self, seed: int) -> None:
        stage = self._stage
        for start, piece in zip(stage.starts.values(), self._initial_pieces(seed), strict=True):
            stage.optimizer.weights[start : start + len(piece)] = piece
        stage.refresh()

    @property
    def loss_scale(self) -> float:
        """Factor by which the loss is multiplied before the backward pass."""
        return 1.0 if self._scaler is None else self._scaler.scale.item()

    # --- training ---------------------------------------------------------------------------------

    def _update(self, parts: list[Batch], num_tokens: int, *, lr: float, measure: bool) -> Update:
        nats, sum_sq, square = self._gradient(parts, num_tokens, measure)
        scale = self.loss_scale
        norm = square**0.5 / scale
        applied = self._stage.optimizer.apply(lr, norm, scale)
        self._stage.refresh()
        if self._scaler is not None:
            self._scaler.update(not applied)
        return Update(loss_nats=nats, sum_sq=sum_sq, grad_norm=norm, applied=applied)

    def _gradient(
        self, parts: list[Batch], num_tokens: int, measure: bool
    ) -> tuple[float, float, float]:
        """Leave the whole batch's gradient, scaled, in the gradient buffers.

        Returns:
            The batch's loss in nats, sum k_i/K |g_i|^2 and the square of the scaled gradient norm.
        """
        stage, scale = self._stage, self.loss_scale
        stage.ddp.zero_grad_buffer()
        stage.ddp.train()
        if measure:
            self._start_statistics(parts)
        with self._random_streams():
            nats = self._run(parts, factor=scale / num_tokens)
        sum_sq = stage.statistics.finish(num_tokens, scale) if measure else 0.0
        square = stage.reduce_gradient() / self.layout.dp  # every replica has the same
        nats, sum_sq, square = sum_over_ranks(nats, sum_sq, square)
        return nats, sum_sq, square

    def _run(self, parts: list[Batch], *, factor: float | None) -> float:
        """Send equal micro-batches through megatron's schedule; no factor: forward only.

        Returns:
            Their loss in nats on one rank of the last stage, 0 on all others.
        """
        nats: list[Tensor] = []
        micro_batches = iter(parts)

        def forward(_: Any, ddp: Any) -> tuple[Tensor, Any]:
            part = next(micro_batches)
            tokens, labels = to_device(part, cpu.device())
            return ddp.module.losses(tokens, labels), lambda losses: reduce(losses, part)

        def reduce(losses: Tensor, part: Batch) -> tuple[Tensor, Tensor, None]:
            nats.append(losses.detach().double().sum())
            num_tokens = torch.tensor(int(part.loss_mask.sum()), dtype=torch.int)
            return losses.sum() * (factor or 1.0), num_tokens, None

        with cpu.megatron_on_this_device(), torch.set_grad_enabled(factor is not None):
            get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=None,
                model=[self._stage.ddp],
                num_microbatches=len(parts),
                seq_length=parts[0].tokens.shape[1],
                micro_batch_size=len(parts[0]),
                forward_only=factor is None,
            )
        is_first_slice = parallel_state.get_tensor_model_parallel_rank() == 0
        return torch.stack(nats).sum().item() if nats and is_first_slice else 0.0

    def _evaluate(self, batch: Batch) -> Iterator[float]:
        self._stage.ddp.eval()
        for parts in self._equal_parts(batch):
            yield self._run(parts, factor=None)

    def _equal_parts(self, batch: Batch) -> Iterator[list[Batch]]:
        """Yield this replica's share of a batch as groups of equal micro-batches."""
        replica = parallel_state.get_data_parallel_rank()
        mine = evaluation_share(batch, self.layout.dp, replica, EVALUATION_MBS)
        for _, equal in groupby(mine, key=len):
            yield list(equal)

    # --- state ------------------------------------------------------------------------------------

    def switch(self, layout: Layout) -> Switched:
        """Continue under another layout: what a rank lacks is sent to it, in memory.

        Args:
            layout: with the same number of ranks.

        Raises:
            ConfigError: the layout does not fit the world or the model; nothing has changed then.
        """
        check_layout(self.spec, layout)
        if layout == self.layout:
            return Switched(seconds=0.0, moved_bytes=0, needed_bytes=0)
        timer, old = StepTimer(), self._stage
        old.free_gradient()
        new = self._build(layout)
        moved = move(
            plan(self.spec, old.layout, layout),
            self.rank,
            old.flat_shards(),
            new.flat_shards(),
        )
        new.optimizer.num_updates = old.optimizer.num_updates
        new.refresh()
        old.free()
        self._stage = new
        return _switched(moved, timer)

    def snapshot(self) -> RankState:
        """Return an in-memory copy of this rank's full state."""
        vectors = {name: vector.clone() for name, vector in self._stage.vectors().items()}
        return RankState(layout=self.layout, vectors=vectors, scalars=self._scalars())

    def restore(self, snapshot: RankState) -> None:
        """Go back to a snapshot, exactly; every rank must have taken it at the same moment."""
        if snapshot.layout != self.layout:
            self._replace(snapshot.layout)
        for name, vector in self._stage.vectors().items():
            vector.copy_(snapshot.vectors[name])
        self._set_scalars(snapshot.scalars)

    def _replace(self, layout: Layout) -> None:
        """Take on another layout without its state."""
        self._stage.free_gradient()
        self._stage.free()
        self._stage = self._build(layout)

    def _scalars(self) -> dict[str, Any]:
        """Return the part of the state that is the same on every rank."""
        scaler = {} if self._scaler is None else self._scaler.state_dict()
        return {
            "num_updates": self._stage.optimizer.num_updates,
            "random": self._random.get_state().clone(),
            "scaler": {k: v.clone() if isinstance(v, Tensor) else v for k, v in scaler.items()},
        }

    def _set_scalars(self, scalars: dict[str, Any]) -> None:
        self._stage.optimizer.num_updates = scalars["num_updates"]
        self._random.set_state(scalars["random"])
        if self._scaler is not None and scalars["scaler"]:
            scaler = dict(scalars["scaler"])
            scaler["scale"] = scaler["scale"].to(cpu.device())
            # Megatron's own loader asks for CUDA whatever there is.
            vars(self._scaler).update({f"_{key}": value for key, value in scaler.items()})
        self._stage.refresh()

    def load(self, path: Path) -> None:
        """Read the state written by ``save``, under the layout in force.

        Raises:
            RunError: the folder is missing, damaged, or belongs to another model.
        """
        fingerprint, stage = state_fingerprint(self.spec), self._stage
        self._set_scalars(load_checkpoint(path, fingerprint, stage.starts, stage.vectors()))


def _switched(moved: Moved, timer: StepTimer) -> Switched:
    totals = torch.tensor([moved.sent_bytes, moved.needed_bytes], device=cpu.device())
    dist.all_reduce(totals)
    sent, needed = totals.tolist()
    return Switched(seconds=timer.stop(), moved_bytes=sent, needed_bytes=needed)
