"""What one rank of ``switch_cost.py`` does; it is started as often as there are ranks.

One training run goes through every method on every transition. It is judged by the losses of the
two iterations after each, which must be those of a run that never switched.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # before torch is imported; cf. cona.rank
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from switch_plan import LR, NUM_AFTER, NUM_BEFORE, NUM_RANKS, TRANSITIONS, Measured, spec_of

from cona.engine.base import Batch
from cona.engine.parallel import ParallelEngine
from cona.engine.reshard import CHUNK_BYTES
from cona.engine.timing import StepTimer
from cona.rank import reuse_memory
from cona.specs import ModelSpec
from cona.strategy import Layout

Losses = list[float]


def batch_of(spec: ModelSpec, index: int) -> Batch:
    """Return the random tokens of one iteration."""
    rng = np.random.default_rng(index)
    tokens, labels = rng.integers(0, spec.vocab_size, (2, NUM_RANKS, spec.seq_length))
    return Batch(tokens=tokens, labels=labels, loss_mask=np.ones_like(tokens, bool))


def train(engine: Any, indices: range) -> Losses:
    """Run iterations of one sample per micro-batch; return their losses in nats."""
    steps = (batch_of(engine.spec, i) for i in indices)
    stats = [engine.train_step(b, exec_mbs=1, lr=LR, gradient_statistics=False) for b in steps]
    return [s.loss_nats for s in stats]


def error(losses: Losses, expected: Losses) -> float:
    """Return the largest relative difference of two lists of losses."""
    return max(abs(a / b - 1) for a, b in zip(losses, expected, strict=True))


# --- in one set of processes --------------------------------------------------------------------


def engines(spec: ModelSpec, folder: Path, repeats: int) -> dict[str, Any]:
    """Time the live switch, DCP and torch_dist in turn, ``repeats`` times on every transition.

    Returns:
        The losses of a run that never switches, and what was measured.
    """
    start_megatrons_helpers()
    actions = [(*t, m) for t in TRANSITIONS for m in (live, dcp, torch_dist) * repeats]
    num_iterations = NUM_BEFORE + NUM_AFTER * len(actions)
    expected = train(ParallelEngine(spec, TRANSITIONS[0][0], seed=0), range(num_iterations))
    engine = ParallelEngine(spec, TRANSITIONS[0][0], seed=0)
    train(engine, range(NUM_BEFORE))
    extra = {(old, new): extra_memory(engine, old, new) for old, new in TRANSITIONS}
    found = []
    for index, (old, new, method) in enumerate(actions):
        engine.switch(old)
        measured = method(engine, new, folder)
        if method is live:
            measured.extra_memory = extra[old, new]
        following = range(num_iterations)[NUM_BEFORE + index * NUM_AFTER :][:NUM_AFTER]
        measured.error = error(train(engine, following), [expected[i] for i in following])
        found.append(asdict(measured))
    return {"losses": expected, "measured": found}


def live(engine: ParallelEngine, new: Layout, _: Path) -> Measured:
    """Switch in memory."""
    old, cost = engine.layout, engine.switch(new)
    return Measured(
        method="live",
        old=str(old),
        new=str(new),
        seconds=cost.seconds,
        moved_bytes=cost.moved_bytes,
        needed_bytes=cost.needed_bytes,
    )


def dcp(engine: ParallelEngine, new: Layout, folder: Path) -> Measured:
    """Save and load our own checkpoint, which is torch.distributed.checkpoint with checksums."""
    return _through_disk("dcp", engine, new, folder / "dcp", engine.save, engine.load)


def torch_dist(engine: ParallelEngine, new: Layout, folder: Path) -> Measured:
    """Save and load megatron's distributed checkpoint."""
    return _through_disk(
        "torch_dist",
        engine,
        new,
        folder / "torch_dist",
        lambda path: _save_torch_dist(engine, path),
        lambda path: _load_torch_dist(engine, path),
    )


def _local_bytes(engine: ParallelEngine) -> int:
    """Return the bytes of a rank's weights, moments and gradient."""
    stage = engine._stage
    return sum(v.nbytes for v in (*stage.vectors().values(), stage.optimizer.gradient))


def _through_disk(
    method: str,
    engine: ParallelEngine,
    new: Layout,
    path: Path,
    save: Callable[[Path], None],
    load: Callable[[Path], None],
) -> Measured:
    """Time saving, setting up the new layout without its state, and loading; nothing restarts."""

    def through() -> None:
        save(path)
        engine._replace(new)
        load(path)

    old, seconds = engine.layout, _timed(through)
    moved = 2 * sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    return Measured(method=method, old=str(old), new=str(new), seconds=seconds, moved_bytes=moved)


def _timed(action: Callable[[], None]) -> float:
    timer = StepTimer()
    action()
    return timer.stop()


def start_megatrons_helpers() -> None:
    """Start, on nobody's clock, the processes that megatron's checkpoints start at first use."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._get_write_results_queue()
    if not torch.cuda.is_available():  # they wait for the device even where there is none
        torch.cuda.synchronize = lambda *_: None


def _sharded(engine: ParallelEngine) -> dict[str, Any]:
    """Describe the weights and moments of a stage in megatron's terms."""
    from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor

    stage = engine._stage
    weights = stage.ddp.module.sharded_state_dict()
    found: dict[str, Any] = {}
    for shard, start in stage.starts.items():
        weight = weights[shard.local_name]
        for name, vector in stage.vectors().items():
            part = vector[start : start + shard.numel].view(weight.data.shape)
            key = f"{name}/{shard.local_name}"
            found[key] = make_sharded_optimizer_tensor(weight, part, name)
    return found


def _save_torch_dist(engine: ParallelEngine, path: Path) -> None:
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        path.mkdir()
    dist.barrier()
    dist_checkpointing.save({**_sharded(engine), "scalars": engine._scalars()}, str(path))


def _load_torch_dist(engine: ParallelEngine, path: Path) -> None:
    from megatron.core import dist_checkpointing

    sharded = _sharded(engine)
    targets = {name: tensor.data for name, tensor in sharded.items()}
    loaded = dist_checkpointing.load(sharded, str(path))
    for name, target in targets.items():
        target.copy_(loaded[name])
    engine._set_scalars(loaded["scalars"])


def extra_memory(engine: ParallelEngine, old: Layout, new: Layout) -> float:
    """Return the growth of the memory's peak in a live switch, on the worst rank, as a fraction.

    Of what the rank holds afterwards plus one chunk. Nothing is timed: freed memory, which ranks
    keep for the next switch, is given back first, so that all growth is seen.
    """
    engine.switch(old)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    held = _memory("VmRSS")
    engine.switch(new)
    extra = (_memory("VmHWM") - held) / (_local_bytes(engine) + CHUNK_BYTES)
    worst = torch.tensor(extra, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


def _memory(kind: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


# --- DeepSpeed: two sets of processes -----------------------------------------------------------


def universal_save(spec: ModelSpec, folder: Path, _: int) -> list[float]:
    """Train, and write a universal checkpoint; return when that began."""
    engine = _deepspeed(spec, TRANSITIONS[0][0])
    train(engine, range(NUM_BEFORE))
    dist.barrier()
    began = time.time()
    engine.save_universal(folder / "universal")
    return [began]


def universal_load(spec: ModelSpec, folder: Path, _: int) -> list[float]:
    """Go on from the universal checkpoint; return when it was loaded and the losses after it."""
    engine = _deepspeed(spec, TRANSITIONS[0][1])
    engine.load_universal(folder / "universal")
    dist.barrier()
    return [time.time(), *train(engine, range(NUM_BEFORE, NUM_BEFORE + NUM_AFTER))]


def _deepspeed(spec: ModelSpec, layout: Layout) -> Any:
    from cona.engine.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(spec, layout, seed=0, zero_stage=1, switch_path="universal")


def main(role: str, size: str, repeats: int, folder: Path, rank: int) -> None:
    """Join the other ranks, play a role, and leave rank 0's result in the folder."""
    reuse_memory()
    store = dist.FileStore(str(folder / f"{role}.store"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    roles: dict[str, Callable[[ModelSpec, Path, int], Any]] = {
        r.__name__: r for r in (engines, universal_save, universal_load)
    }
    found = roles[role](spec_of(size), folder, repeats)
    if rank == 0:
        (folder / f"{role}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
