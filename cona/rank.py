"""This process as one of several ranks: started by torchrun's agent (`cona.launch`) or by srun."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cona.errors import ConaError
from cona.interrupt import TIME_LIMIT

if TYPE_CHECKING:
    from cona.engine.ranks import Leader

FAULTS = "CONA_FAULTS"
"""Environment variable: the folder in which a rank that fails leaves its traceback."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""

AGAIN = "run the same command again: it continues from the last checkpoint"


def is_rank() -> bool:
    """Return whether this process is one of several ranks, started by torchrun or srun."""
    return "RANK" in os.environ or _is_slurm_task()


def _is_slurm_task() -> bool:
    """Return whether srun started this process as one of several; a batch script is no task."""
    is_batch_script = "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ
    return "SLURM_PROCID" in os.environ and _num_slurm_tasks() > 1 and not is_batch_script


def _num_slurm_tasks() -> int:
    return int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS") or 1)


def num_ranks() -> int:
    """Return how many ranks there are; this process is one of them."""
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else _num_slurm_tasks()


def first_host(hosts: str) -> str:
    """Return the first name of a SLURM host list, e.g. ``n03`` of ``n[03-05,9],login1``."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", hosts).split(",")[0]


def adopt_slurm() -> None:
    """Give this process the variables that torch.distributed reads, from those of SLURM."""
    env = os.environ
    job, step = (int(env.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", "localhost")
    env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], str(_num_slurm_tasks())
    env["LOCAL_RANK"] = env.get("SLURM_LOCALID", "0")
    env.setdefault("MASTER_ADDR", first_host(hosts))
    # ASSUMED: free there; another job, or another step, gets another one.
    env.setdefault("MASTER_PORT", str(20_000 + (31 * job + step) % 20_000))


def reuse_memory() -> None:
    """Let a switch fill memory that the last one freed, in large pages; before torch is imported.

    A new page costs a fault, and zeros, before it holds a weight: on a virtual machine several
    times what the transfer costs. So the C library keeps what is freed, as GPUs' allocators do.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def join(lead: Callable[[Leader], None]) -> None:
    """Be a rank: lead on rank 0, follow on the others until rank 0 is done.

    Args:
        lead: what rank 0 does with its hold on all ranks.
    """
    if "RANK" not in os.environ:
        adopt_slurm()
    rank = int(os.environ["RANK"])
    reuse_memory()
    sys.excepthook = _note_fault
    _end_with_launcher()
    warnings.filterwarnings("ignore", module=r"megatron\.")  # its advice to its own developers
    # DeepSpeed's calls of torch, which change names from release to release.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")
    from cona.engine.ranks import Leader, serve, world

    with world() as group:
        if rank > 0:
            # Signals are rank 0's: it saves with our help, and then lets us go.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(TIME_LIMIT, signal.SIG_IGN)
            serve(group)
            return
        leader = Leader(group)
        try:
            lead(leader)
        except ConaError:
            leader.stop()  # any other error ends this process, which the others notice
            raise
        leader.stop()


def _end_with_launcher() -> None:
    """Get SIGTERM (save and stop) when the launcher is killed, where Linux can do that."""
    if FAULTS in os.environ and sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _note_fault(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Write the traceback to a file; without a launcher that reads it, say so in one sentence."""
    rank = int(os.environ["RANK"])
    folder = Path(os.environ.get(FAULTS) or tempfile.mkdtemp(prefix="cona-fault-"))
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.txt"
    path.write_text("".join(traceback.format_exception(kind, error, trace)), encoding="utf-8")
    if FAULTS not in os.environ:
        sys.stderr.write(f"Error: {fault_sentence(rank, path)}\n")


def fault_sentence(rank: int, path: Path) -> str:
    """Return what happened to a rank, from the traceback that it left."""
    lines = path.read_text(encoding="utf-8").strip().splitlines()
    reason = next((line for line in reversed(lines) if line[:1].strip()), "no reason given")
    return f"rank {rank} failed: {reason}; its traceback is in {path}; {AGAIN}"
