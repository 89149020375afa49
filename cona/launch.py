"""Starts the ranks of a measured run, and says in one sentence what went wrong on any of them.

`cona run --clock measured` is torchrun's agent: it runs the same command once per rank, and the
ranks find out that they are some (`cona.rank`).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from cona.errors import ConaError, ConfigError
from cona.interrupt import TIME_LIMIT
from cona.rank import AGAIN, FAULTS, fault_sentence
from cona.specs import EngineSpec
from cona.strategy import Techniques

SAVE_S = 600
"""ASSUMED: seconds that ranks get for a last checkpoint after a signal, before they are killed."""

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, TIME_LIMIT)
"""Signals that the ranks get too; rank 0 then saves, or ends."""


class RanksError(ConaError):
    """A rank ended early, and with it the run.

    Args:
        message: which rank, and why.
        exit_code: the rank's exit status.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def start(num_ranks: int, engine: EngineSpec, techniques: Techniques) -> None:
    """Run this very command once per rank on this machine, and wait for the end.

    Args:
        num_ranks: processes; one GPU each, where there are GPUs.
        engine: what the ranks will build.
        techniques: what they will carry out.

    Raises:
        ConfigError: the hardware lacks what was asked for.
        RanksError: a rank ended early.
    """
    _check_hardware(num_ranks, engine, techniques)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if Path("/sys/class/net/lo").exists():  # one machine: its name need not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = Path(tempfile.mkdtemp(prefix="cona-ranks-"))
    os.environ[FAULTS] = str(folder)
    end = _run_agent(num_ranks, folder)
    if str(folder) not in str(end):  # else the user is told to look there
        shutil.rmtree(folder)
    if end is not None:
        raise end


def _check_hardware(num_ranks: int, engine: EngineSpec, techniques: Techniques) -> None:
    import torch

    from cona.engine.factory import refuse_without_gpu

    refuse_without_gpu(engine, techniques)
    if torch.cuda.is_available() and num_ranks > (num_gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"--nproc {num_ranks}: this machine has {num_gpus} GPUs, one for each rank; "
            f"nearest: {num_gpus}"
        )


def _run_agent(num_ranks: int, folder: Path) -> ConaError | SystemExit | None:
    """Be torchrun's agent until the ranks have ended; return what to raise, if anything."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # the agent's own reports: the user gets one sentence
    silent = dict.fromkeys(range(1, num_ranks), Std.ALL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        shutdown_timeout=SAVE_S,
        signals_to_handle=",".join(number.name for number in PASSED_ON),
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=silent),
    )
    try:
        elastic_launch(config, sys.executable)(*sys.argv)
    except ChildFailedError as error:
        return explain(error.failures, folder)
    except SignalException as error:  # rank 0 has told the user
        return SystemExit(128 + error.sigval)
    return None


def explain(failures: dict[int, Any], folder: Path) -> ConaError | SystemExit:
    """Return what to raise for failed ranks: the first cause, once.

    Args:
        failures: torchrun's, by rank.
        folder: where ranks leave their tracebacks.
    """
    faults = sorted(folder.glob("rank*.txt"), key=lambda path: path.stat().st_mtime_ns)
    said = {int(path.stem.removeprefix("rank")) for path in faults}
    for rank, failure in sorted(failures.items()):
        is_killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        if is_killed and rank not in said:  # it may abort after it has left its traceback
            name = signal.Signals(-failure.exitcode).name
            message = (
                f"rank {rank} (process {failure.pid}) was ended by {name}, and the run with it"
            )
            return RanksError(f"{message}; {AGAIN}", 128 - failure.exitcode)
    if not faults:  # rank 0 has told the user
        return SystemExit(next(iter(failures.values())).exitcode)
    if 0 in failures and failures[0].exitcode > 0 and 0 not in said:  # and so it has here
        return SystemExit(failures[0].exitcode)
    rank = int(faults[0].stem.removeprefix("rank"))
    code = failures[rank].exitcode if rank in failures else 1
    return RanksError(fault_sentence(rank, faults[0]), 128 - code if code < 0 else code)
