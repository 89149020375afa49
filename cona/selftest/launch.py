"""Start ranks that run a function together, and hear from the first of them.

On the CPU the ranks are forked from a server that has imported torch and megatron once; on GPUs
they start afresh, because CUDA does not survive a fork. The ranks' own output goes to log files.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cona.errors import RunError

SILENCE_S = 300.0
"""ASSUMED: seconds without news after which the ranks are taken to hang."""


class Ranks:
    """Starts processes that form one ``torch.distributed`` world on this machine.

    Args:
        on_gpus: each rank takes the device of its number, over NCCL; else gloo.
        logs: an existing folder for what the ranks print.
    """

    def __init__(self, *, on_gpus: bool, logs: Path) -> None:
        self.on_gpus, self.logs = on_gpus, logs
        self._context: Any = multiprocessing.get_context("spawn" if on_gpus else "forkserver")
        if not on_gpus:
            self._context.set_forkserver_preload(["cona.selftest.work"])

    def run(
        self, function: str, num_ranks: int, *args: Any, name: str
    ) -> Generator[Any, None, None]:
        """Call a function on every rank and yield what it yields on the first.

        Args:
            function: ``module:name`` of a generator function; all arguments can be pickled.
            num_ranks: processes.
            args: for the function.
            name: of the log files.

        Raises:
            RunError: a rank raised, died, or said nothing for ``SILENCE_S``; no rank is left.
        """
        with TemporaryDirectory(prefix="cona-ranks-") as folder, self._pipes(num_ranks) as pipes:
            ranks = []
            try:
                for rank, (_, theirs) in enumerate(pipes):
                    world = World(rank, num_ranks, folder, self.on_gpus)
                    log = self.logs / f"{name}-rank{rank}.log"
                    arguments = (world, theirs, log, function, args)
                    ranks.append(self._context.Process(target=_rank, args=arguments, daemon=True))
                    ranks[-1].start()
                    theirs.close()  # so that a rank's death closes the pipe
                yield from _answers([ours for ours, _ in pipes])
            finally:
                for process in ranks:
                    process.kill()
                    process.join()

    @contextmanager
    def _pipes(self, count: int) -> Generator[list[tuple[Connection, Connection]], None, None]:
        pipes = [self._context.Pipe(duplex=False) for _ in range(count)]
        try:
            yield pipes
        finally:
            for end in (end for pipe in pipes for end in pipe):
                end.close()


class World:
    """Where a rank finds the others."""

    def __init__(self, rank: int, num_ranks: int, folder: str, on_gpus: bool) -> None:
        self.rank, self.num_ranks, self.on_gpus = rank, num_ranks, on_gpus
        self.store = str(Path(folder) / "store")

    def join(self) -> None:
        """Become a rank of the world."""
        import torch
        import torch.distributed as dist

        if self.on_gpus:
            torch.cuda.set_device(self.rank)
        else:
            torch.set_num_threads(1)
        dist.init_process_group(
            "nccl" if self.on_gpus else "gloo",
            store=dist.FileStore(self.store, self.num_ranks),
            rank=self.rank,
            world_size=self.num_ranks,
            timeout=timedelta(seconds=SILENCE_S),
        )

    def leave(self) -> None:
        """Leave the world once nobody needs this rank any more."""
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


_ANSWER, _ERROR, _END = "answer", "error", "end"


def _rank(world: World, pipe: Connection, log: Path, function: str, args: tuple[Any, ...]) -> None:
    """What a rank's process does: the first sends what it yields, all say how they ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starting process ends its ranks
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Else Transformer Engine would multiply float32 in TF32, which keeps 10 bits of 23.
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    module, _, name = function.partition(":")
    try:
        generator: Iterable[Any] = getattr(importlib.import_module(module), name)
        world.join()
        for answer in generator(*args):  # type: ignore[operator]
            if world.rank == 0:
                pipe.send((_ANSWER, answer))
        world.leave()
    except Exception as error:  # noqa: BLE001 - of any kind: it is told to the starting process
        traceback.print_exc()
        pipe.send((_ERROR, f"{type(error).__name__}: {error}"))
        return
    pipe.send((_END, None))


def _answers(pipes: list[Connection]) -> Generator[Any, None, None]:
    """Yield answers until every rank has ended; raise RunError at the first that fails."""
    running = dict(enumerate(pipes))
    while running:
        deadline = time.monotonic() + SILENCE_S
        ready = wait(list(running.values()), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RunError(f"no rank answered for {SILENCE_S:.0f} s")
        for rank in [rank for rank, pipe in running.items() if pipe in ready]:
            kind, content = _receive(rank, running[rank])
            if kind == _ERROR:
                raise RunError(f"rank {rank}: {content}")
            if kind == _END:
                del running[rank]
            else:
                yield content


def _receive(rank: int, pipe: Connection) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = pipe.recv()
    except EOFError as end:
        raise RunError(f"rank {rank} died") from end
    return message
