"""Two real ranks that sum a tensor, as `cona selftest` would start them; prints what they found.

A process of its own (`python -m cona.doctor.ranks`), because it imports torch and may hang.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cona.errors import RunError

WORK = "cona.doctor.ranks:all_reduce"
NUM_RANKS = 2
NUM_VALUES = 250_000
"""Values that are summed: 1 MB, more than what travels in one packet."""


def all_reduce(on_gpus: bool) -> Iterator[dict[str, Any]]:
    """Yield what is known about torch, then how the sum went, then about megatron-core; on a rank.

    Args:
        on_gpus: the tensor lies on this rank's GPU, and NCCL sums it; else gloo.
    """
    import torch
    import torch.distributed as dist

    cuda = torch.version.cuda
    yield {"torch": torch.__version__, "cuda": cuda, "gpus": torch.cuda.device_count()}
    rank = dist.get_rank()
    values = torch.full((NUM_VALUES,), rank + 1.0, device="cuda" if on_gpus else "cpu")
    start_s = time.monotonic()
    dist.all_reduce(values)
    low, high = float(values.min()), float(values.max())
    took_s = time.monotonic() - start_s
    yield {"backend": dist.get_backend(), "low": low, "high": high, "all_reduce_s": took_s}
    if rank == 0:
        yield _megatron()


def _megatron() -> dict[str, Any]:
    try:
        import megatron.core
    except (
        ImportError,
        OSError,
        RuntimeError,
        AttributeError,
    ) as error:  # of a broken library, too
        return {"megatron": None, "megatron_error": f"{type(error).__name__}: {error}"}
    return {"megatron": megatron.core.__version__}


def main() -> None:
    """Start the ranks and write all that they found to stdout, as JSON."""
    from cona.selftest.launch import Ranks

    on_gpus = num_gpus() >= NUM_RANKS
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cona-doctor-") as logs:
        ranks = Ranks(on_gpus=on_gpus, logs=Path(logs))
        try:
            for part in ranks.run(WORK, NUM_RANKS, on_gpus, name="doctor"):
                found |= part
        except RunError as error:
            found["error"] = str(error)
    sys.stdout.write(json.dumps(found))


def num_gpus() -> int:
    """Return how many GPUs torch can use; where there is no driver, torch is not even asked."""
    if shutil.which("nvidia-smi") is None:
        return 0
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    main()
