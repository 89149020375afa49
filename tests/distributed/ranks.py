"""Run a function on several real ranks (gloo, one process each) and collect what they return.

The ranks are forked from a server process that has imported torch and megatron once and has never
touched torch.distributed, whatever the test process did before.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["cona.engine.models"])


def run_ranks(
    function: Callable[..., Any], num_ranks: int, *args: Any, timeout_s: float = 120.0
) -> list[Any]:
    """Call ``function(rank, *args)`` on every rank of a new gloo group.

    Args:
        function: of a module's top level; what it returns can be pickled without torch.
        num_ranks: processes to start.
        args: passed on to every rank.
        timeout_s: after which all ranks are killed.

    Returns:
        The results in the order of the ranks.

    Raises:
        AssertionError: a rank raised (its traceback is the message), died or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(num_ranks)]
        ranks = [
            _CONTEXT.Process(
                target=_rank, args=(rank, num_ranks, Path(folder), pipe, function, args)
            )
            for rank, (_, pipe) in enumerate(pipes)
        ]
        try:
            for process, (_, theirs) in zip(ranks, pipes, strict=True):
                process.start()
                theirs.close()  # so that a rank's death closes the pipe
            return _collect([ours for ours, _ in pipes], time.monotonic() + timeout_s)
        finally:
            started = [process for process in ranks if process.pid is not None]
            for process in started:
                process.kill()
            for process in started:
                process.join()


def _rank(
    rank: int,
    num_ranks: int,
    folder: Path,
    pipe: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder / "store"), num_ranks),
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=60),
        )
        result = function(rank, *args)
        dist.barrier()  # nobody hangs up while another still reads
        pipe.send_bytes(pickle.dumps((result, None)))
    except BaseException:
        pipe.send_bytes(pickle.dumps((None, traceback.format_exc())))
        raise
    finally:
        pipe.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while missing := [rank for rank in range(len(pipes)) if rank not in results]:
        ready = wait([pipes[rank] for rank in missing], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"no answer in time from rank {', '.join(map(str, missing))}")
        for rank in missing:
            if pipes[rank] in ready:
                results[rank] = _answer(rank, pipes[rank])
    return [results[rank] for rank in range(len(pipes))]


def _answer(rank: int, pipe: Connection) -> Any:
    try:
        result, error = pickle.loads(pipe.recv_bytes())
    except EOFError as end:
        raise AssertionError(f"rank {rank} died without an answer") from end
    if error:
        raise AssertionError(f"rank {rank} failed:\n{error}")
    return result
