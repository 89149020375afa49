"""The DeepSpeed engine: ZeRO stages 1 to 3 with tensor parallelism, and the paper's way to switch.

Weights to begin with, batches and the frame of a step are those of ``cona.engine.rank_engine``;
DeepSpeed reduces, clips and updates. Source: architecture.md, Contracts; method.md 2 and 7.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from cona.engine import cpu, universal
from cona.engine.base import Batch, Switched
from cona.engine.flat import MOMENTS
from cona.engine.megatron import state_fingerprint, to_device
from cona.engine.rank_engine import (
    EVALUATION_MBS,
    RankEngine,
    RankState,
    Update,
    check_layout,
    sum_over_ranks,
)
from cona.engine.reshard import FlatShards, move, plan
from cona.engine.sharded_checkpoint import load_checkpoint
from cona.engine.shares import evaluation_share
from cona.engine.stage import Numerics
from cona.engine.timing import StepTimer
from cona.engine.zero import TAG, ZeroStage
from cona.errors import ConfigError, nearest
from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Layout, StrategySpace

SWITCH_PATHS = ("live", "universal")
"""In memory, or through DeepSpeed's universal checkpoint."""


class DeepSpeedEngine(RankEngine[ZeroStage]):
    """Implements ``cona.engine.base.LiveEngine`` over all ranks of the world.

    Args:
        spec: the model.
        layout: the first layout; pp is 1 and dp*tp is the number of ranks.
        seed: of the initial weights, which are the single-process engine's, and of dropout.
        zero_stage: what ZeRO spreads over the replicas: 1 moments, 2 gradients too, 3 weights too.
        numerics: precision (fp32 or bf16) and recomputation.
        switch_path: one of ``SWITCH_PATHS``.
        scratch: folder for what a universal switch writes, on a file system that all ranks share;
            None: the system's temporary folder, which the ranks of one machine share.

    Raises:
        ConfigError: the layout does not fit the world or the model, or has a pipeline; or DeepSpeed
            cannot do what is asked.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: Layout,
        seed: int,
        *,
        zero_stage: int = 1,
        numerics: Numerics | None = None,
        switch_path: str = "live",
        scratch: Path | None = None,
    ) -> None:
        super().__init__(spec, seed, numerics)
        self.zero_stage, self.switch_path, self._scratch = zero_stage, switch_path, scratch
        _check_abilities(zero_stage, self.numerics, switch_path)
        self._stage = self._build(layout)
        self._stage.set_vectors(self._initial_vectors(seed))

    def _build(self, layout: Layout) -> ZeroStage:
        _check_layout(self.spec, layout)
        self._groups.activate(layout)
        return ZeroStage(self.spec, layout, self.numerics, self.zero_stage)

    def _initial_vectors(self, seed: int) -> dict[str, Tensor]:
        weights = torch.cat(list(self._initial_pieces(seed)))
        vectors = {name: torch.zeros_like(weights) for name in self._stage.empty_vectors()}
        return {**vectors, "weights": weights.to(cpu.device())}

    # --- training ---------------------------------------------------------------------------------

    def _update(self, parts: list[Batch], num_tokens: int, *, lr: float, measure: bool) -> Update:
        with self._random_streams():
            nats, sum_sq = self._accumulate(parts, num_tokens, measure)
        norm, applied = self._stage.step(lr)
        return Update(loss_nats=nats, sum_sq=sum_sq, grad_norm=norm, applied=applied)

    def _accumulate(
        self, parts: list[Batch], num_tokens: int, measure: bool
    ) -> tuple[float, float]:
        """Leave the gradient with DeepSpeed; return the batch's nats and sum k_i/K |g_i|^2."""
        stage, dp = self._stage, self.layout.dp
        stage.train(True)
        if measure:
            self._start_statistics(parts)
        nats = 0.0
        for part in parts:
            losses = stage.losses(*to_device(part, cpu.device()))
            # DeepSpeed applies the replicas' mean, but the batch's gradient is their sum.
            stage.backward(losses.sum() * (dp / num_tokens))
            nats += losses.detach().double().sum().item()
        sum_sq = stage.statistics.finish(num_tokens, scale=dp) if measure else 0.0
        nats, sum_sq = sum_over_ranks(nats / self.layout.tp, sum_sq)
        return nats, sum_sq

    def _evaluate(self, batch: Batch) -> Iterator[float]:
        self._stage.train(False)
        yield sum(self._nats(part) for part in self._evaluation_parts(batch))

    def _evaluation_parts(self, batch: Batch) -> list[tuple[Batch, float]]:
        """Return what this replica evaluates, as often as all others do, with weights 1 and 0."""
        dp, replica = self.layout.dp, parallel_state.get_data_parallel_rank()
        parts = list(evaluation_share(batch, dp, replica, EVALUATION_MBS))
        # Under stage 3 the replicas gather each layer together.
        idle = math.ceil(math.ceil(len(batch) / dp) / EVALUATION_MBS) - len(parts)
        return [(part, 1.0) for part in parts] + [(batch[:1], 0.0)] * idle

    @torch.no_grad()
    def _nats(self, weighted: tuple[Batch, float]) -> float:
        """Return this rank's part of the loss in nats of samples that all its tp peers have."""
        part, weight = weighted
        losses = self._stage.losses(*to_device(part, cpu.device()))
        return losses.double().sum().item() * weight / self.layout.tp

    # --- state ------------------------------------------------------------------------------------

    def switch(self, layout: Layout) -> Switched:
        """Continue under another layout, by the engine's switch path.

        Returns:
            The cost. Of the universal path ``moved_bytes`` are those of both checkpoints, each
            written and read once; the ranks may read a tensor several times.

        Raises:
            ConfigError: the layout does not fit; nothing has changed then.
            RunError: DeepSpeed's converter failed.
        """
        _check_layout(self.spec, layout)
        if layout == self.layout:
            return Switched(seconds=0.0, moved_bytes=0, needed_bytes=0)
        needed = _needed_bytes(self.spec, self.layout, layout)
        is_live = self.switch_path == "live"
        if not is_live:
            universal.check_universal(self.zero_stage, self.layout, layout)
        timer = StepTimer()
        moved = self._switch_live(layout) if is_live else self._switch_universal(layout)
        return Switched(seconds=timer.stop(), moved_bytes=moved, needed_bytes=needed)

    def _switch_live(self, layout: Layout) -> int:
        scalars, moves = self._scalars(), plan(self.spec, self.layout, layout)
        held = FlatShards(self._stage.starts, list(self._stage.vectors().values()))
        self._replace(layout)
        vectors = self._stage.empty_vectors()
        wanted = FlatShards(self._stage.starts, list(vectors.values()))
        moved = move(moves, dist.get_rank(), held, wanted)
        self._stage.set_vectors(vectors)
        self._set_scalars(scalars)
        return int(sum_over_ranks(moved.sent_bytes)[0])

    def _switch_universal(self, layout: Layout) -> int:
        with self._shared_folder() as folder:
            self.save_universal(folder)
            self._replace(layout)
            self.load_universal(folder)
            return 2 * sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    @contextmanager
    def _shared_folder(self) -> Iterator[Path]:
        """Lend all ranks a new folder."""
        made: list[str | None] = [None]
        if dist.get_rank() == 0:
            made = [tempfile.mkdtemp(prefix="universal-", dir=self._scratch)]
        dist.broadcast_object_list(made)
        folder = Path(str(made[0]))
        try:
            yield folder
            dist.barrier()  # nobody deletes what another still reads
        finally:
            if dist.get_rank() == 0:
                shutil.rmtree(folder, ignore_errors=True)

    def save_universal(self, folder: Path) -> None:
        """Write DeepSpeed's checkpoint and convert it; processes of any layout can load it.

        Raises:
            RunError: DeepSpeed's converter failed.
        """
        self._stage.save_native(folder, self._scalars())
        dist.barrier()
        failure: list[Any] = [None]
        if dist.get_rank() == 0:
            failure = [universal.convert(folder, TAG)]
        dist.broadcast_object_list(failure)
        if failure[0]:
            raise failure[0]

    def load_universal(self, folder: Path) -> None:
        """Read what ``save_universal`` wrote, under whatever layout, into the one in force."""
        self._set_scalars(self._stage.load_universal(folder))

    def _replace(self, layout: Layout) -> None:
        """Take on another layout without its state."""
        self._stage.close()
        self._stage = self._build(layout)

    def snapshot(self) -> RankState:
        """Return an in-memory copy of this rank's full state."""
        return RankState(layout=self.layout, vectors=self._stage.vectors(), scalars=self._scalars())

    def restore(self, snapshot: RankState) -> None:
        """Go back to a snapshot, exactly; every rank must have taken it at the same moment."""
        if snapshot.layout != self.layout:
            self._replace(snapshot.layout)
        self._stage.set_vectors(snapshot.vectors)
        self._set_scalars(snapshot.scalars)

    def _scalars(self) -> dict[str, Any]:
        """Return the part of the state that is the same on every rank."""
        return {
            "num_updates": self._stage.num_updates,
            "random": self._random.get_state().clone(),
        }

    def _set_scalars(self, scalars: dict[str, Any]) -> None:
        self._stage.num_updates = scalars["num_updates"]
        self._random.set_state(scalars["random"])

    def load(self, path: Path) -> None:
        """Read the state written by ``save``, under the layout in force.

        Raises:
            RunError: the folder is missing, damaged, or belongs to another model.
        """
        fingerprint, vectors = state_fingerprint(self.spec), self._stage.empty_vectors()
        scalars = load_checkpoint(path, fingerprint, self._stage.starts, vectors)
        self._stage.set_vectors(vectors)
        self._set_scalars(scalars)


def _check_abilities(zero_stage: int, numerics: Numerics, switch_path: str) -> None:
    if switch_path not in SWITCH_PATHS:
        raise ConfigError(f"switch_path '{switch_path}': {nearest(switch_path, SWITCH_PATHS)}")
    if zero_stage not in (1, 2, 3):
        raise ConfigError(
            f"zero_stage {zero_stage}: the DeepSpeed engine has stages 1, 2 and 3; nearest: "
            f"{min((1, 2, 3), key=lambda stage: abs(stage - zero_stage))}, or engine megatron"
        )
    if numerics.precision == "fp16":
        raise ConfigError(
            "precision fp16: the DeepSpeed engine computes in fp32 or bf16, because the scale of "
            "DeepSpeed's loss does not survive a switch; nearest: bf16"
        )
    if numerics.sequence_parallel:
        raise ConfigError(
            "sequence_parallel true: the DeepSpeed engine does not sum the gradients of norms over "
            "tensor-parallel ranks; nearest: false"
        )


def _check_layout(spec: ModelSpec, layout: Layout) -> None:
    """Raise ConfigError unless a layout fits the world and the model and has no pipeline."""
    check_layout(spec, layout)
    if layout.pp > 1:
        space = StrategySpace(model=spec, num_gpus=layout.num_gpus, ladder=LadderSpec())
        flat = [valid for valid in space.layouts if valid.pp == 1]
        choice = min(flat, key=lambda valid: abs(valid.tp - layout.tp))
        raise ConfigError(
            f"layout {layout}: the DeepSpeed engine has no pipeline parallelism; nearest: {choice}"
        )


def _needed_bytes(spec: ModelSpec, old: Layout, new: Layout) -> int:
    """Return the bytes of weights and moments that the ranks lack under the new layout."""
    moves = plan(spec, old, new)
    lacking = sum(moves.num_lacking(rank) for rank in range(new.num_gpus))
    return lacking * (1 + len(MOMENTS)) * torch.float32.itemsize
