"""Rank 0 leads and the other ranks follow: a command is broadcast, then every rank carries it out.

So the runner, the policy and all files live on rank 0 alone. Commands travel over a gloo group of
their own, in which followers wait as long as it takes: a policy may search for hours.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cona.engine import factory
from cona.engine.base import Batch, EvalSums, LiveEngine, StepStats, Switched
from cona.errors import ConaError
from cona.specs import EngineSpec, ModelSpec
from cona.strategy import Layout, Techniques

PATIENCE = timedelta(days=30)
"""ASSUMED: longer than any time between two commands; a rank that dies is noticed at once."""


@contextmanager
def world() -> Iterator[dist.ProcessGroup]:
    """Join the ranks that the environment names, and yield the group for commands.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are as torchrun sets them.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")
    try:
        yield dist.new_group(backend="gloo", timeout=PATIENCE)
    except ConaError:  # refused on all ranks; gloo's threads, left alone, may abort the process
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()  # not after a fault: the other ranks notice that we are gone


def hardware() -> dict[str, Any]:
    """Return what result.json says about the ranks."""
    if torch.cuda.is_available():
        device, backend = torch.cuda.get_device_name(), "nccl"
    else:
        device, backend = _processor(), "gloo"
    return {"device": device, "num_ranks": dist.get_world_size(), "backend": backend}


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@dataclass(frozen=True, kw_only=True)
class Command:
    """What every rank does next."""

    action: str
    """`build`, `stop`, or the name of an engine's method."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    """Whether the command before this one ended in a ConaError on rank 0."""


class _Rank:
    """One rank's engine and the snapshots that it keeps."""

    def __init__(self) -> None:
        self.engine: LiveEngine | None = None
        self._snapshots: dict[int, Any] = {}

    def carry_out(self, command: Command) -> Any:
        """Do on this rank what every rank does."""
        if command.action == "build":
            self.engine = None  # its memory is free before the next one takes some
            self._snapshots.clear()
            self.engine = factory.build_live_engine(*command.args, **command.kwargs)
            return self.engine
        if self.engine is None:
            raise RuntimeError(f"'{command.action}' was asked for before an engine was built")
        if command.action == "snapshot":
            self._snapshots[command.args[0]] = self.engine.snapshot()
            return command.args[0]
        if command.action == "restore":
            return self.engine.restore(self._snapshots.pop(command.args[0]))
        return getattr(self.engine, command.action)(*command.args, **command.kwargs)


def serve(group: dist.ProcessGroup) -> None:
    """Follow rank 0 until it says stop.

    Raises:
        RuntimeError: rank 0 is gone, or a command was refused here but not there.
    """
    rank, refusal = _Rank(), None
    while (command := _receive(group)).action != "stop":
        if command.refused is not (refusal is not None):
            raise RuntimeError(f"rank {dist.get_rank()} went another way than rank 0: {refusal}")
        try:
            rank.carry_out(command)
            refusal = None
        except ConaError as error:  # raised on every rank: rank 0 tells the user
            refusal = error


def _receive(group: dist.ProcessGroup) -> Command:
    box: list[Any] = [None]
    dist.broadcast_object_list(box, src=0, group=group)
    command: Command = box[0]
    return command


class Leader:
    """Rank 0's hold on all ranks.

    Args:
        group: the group for commands.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.hardware = hardware()
        self._group, self._rank = group, _Rank()
        self._refused = False

    def build(
        self,
        model: ModelSpec,
        layout: Layout,
        *,
        seed: int,
        engine: EngineSpec,
        techniques: Techniques,
    ) -> LeadEngine:
        """Build an engine on every rank; the one before is gone. Arguments as the factory's."""
        options = {"seed": seed, "engine": engine, "techniques": techniques}
        self.everywhere("build", model, layout, **options)
        return LeadEngine(self)

    def everywhere(self, action: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out an action on every rank and return rank 0's answer."""
        command = Command(action=action, args=args, kwargs=kwargs, refused=self._refused)
        dist.broadcast_object_list([command], src=0, group=self._group)
        self._refused = True
        answer = self._rank.carry_out(command)
        self._refused = False
        return answer

    @property
    def engine(self) -> LiveEngine:
        """Rank 0's own engine."""
        if self._rank.engine is None:
            raise RuntimeError("no engine was built")
        return self._rank.engine

    def stop(self) -> None:
        """Let the other ranks go."""
        dist.broadcast_object_list([Command(action="stop")], src=0, group=self._group)


class LeadEngine:
    """Implements ``cona.engine.base.LiveEngine`` for rank 0: whatever it does, all ranks do.

    Args:
        leader: the hold on all ranks.
    """

    def __init__(self, leader: Leader) -> None:
        self._everywhere, self._leader = leader.everywhere, leader
        self._numbers = count()

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return self._leader.engine.layout

    def train_step(self, batch: Batch, *, exec_mbs: int, lr: float) -> StepStats:
        """Run one optimizer step over the whole batch; ``exec_mbs`` is each replica's."""
        stats: StepStats = self._everywhere("train_step", batch, exec_mbs=exec_mbs, lr=lr)
        return stats

    def evaluate(self, batches: Iterable[Batch]) -> EvalSums:
        """Sum the loss over batches without changing any state."""
        sums: EvalSums = self._everywhere("evaluate", list(batches))
        return sums

    def switch(self, layout: Layout) -> Switched:
        """Go over to another layout."""
        switched: Switched = self._everywhere("switch", layout)
        return switched

    def snapshot(self) -> Any:
        """Return the name of an in-memory copy of the full state, which every rank keeps."""
        return self._everywhere("snapshot", next(self._numbers))

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, exactly; every rank lets go of it, so it serves once."""
        self._everywhere("restore", snapshot)

    def save(self, path: Path) -> None:
        """Write the full state to a folder."""
        self._everywhere("save", path)

    def load(self, path: Path) -> None:
        """Read the state written by ``save``; raises RunError if it is damaged or another's."""
        self._everywhere("load", path)
