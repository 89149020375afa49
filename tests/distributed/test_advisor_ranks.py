"""Norms under DDP and FSDP2 on two ranks: equal to one process that sees every gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

ROOT = Path(__file__).parents[2]
MICROS, MBS = 3, 2
"""Micro-batches of each rank, and their samples."""


def build() -> Any:
    """Return a model whose rows do not divide by two, with a tied weight."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    first, last = nn.Linear(7, 5), nn.Linear(7, 5)
    last.weight = first.weight
    return nn.Sequential(nn.Sequential(first, nn.Linear(5, 7)), nn.Tanh(), last, nn.Softplus())


def micro_batches(rank: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(MICROS * MBS, 7, generator=generator).split(MBS)


def by_hand(num_ranks: int) -> tuple[float, float]:
    """Return mean_i |g_i|^2 and |G|^2 over all micro-batches of all ranks, in one process."""
    import torch

    model, rows = build(), []
    for rank in range(num_ranks):
        for micro in micro_batches(rank):
            gradients = torch.autograd.grad(model(micro).square().mean(), list(model.parameters()))
            rows.append(torch.cat([g.double().flatten() for g in gradients]))
    stacked = torch.stack(rows)
    return float(stacked.square().sum(1).mean()), float(stacked.mean(0).square().sum())


def wrapped(kind: str) -> Any:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = build()
    if kind == "ddp":
        return DistributedDataParallel(model)
    fully_shard(model[0][1])  # tied weights must stay in one group: the root's
    return fully_shard(model)


def collect(rank: int, kind: str, sync: str) -> list[tuple[float, float, int]]:
    """Return the norms of two iterations of a model that stays as it is."""
    import torch

    from cona.advisor_norms import NormCollector

    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms, found = NormCollector(model), []
    for _ in range(2):
        optimizer.zero_grad()
        for i, micro in enumerate(micro_batches(rank)):
            synchronise(model, kind, is_on=sync == "every" or i == MICROS - 1)
            (model(micro).square().mean() / MICROS).backward()
        taken = norms.take()
        found.append((taken.mean_sq, taken.sq_of_mean, taken.num_gradients))
        optimizer.step()
    return found


def synchronise(model: Any, kind: str, *, is_on: bool) -> None:
    if kind == "ddp":
        model.require_backward_grad_sync = is_on  # what model.no_sync() sets
    else:
        model.set_requires_gradient_sync(is_on)


@pytest.mark.parametrize("sync", ["every", "last"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_ranks_find_what_one_process_does(kind: str, sync: str) -> None:
    mean_sq, sq_of_mean = by_hand(2)
    answers = run_ranks(collect, 2, kind, sync)
    assert answers[0] == answers[1]
    for found in answers[0]:
        assert found[:2] == pytest.approx((mean_sq, sq_of_mean), rel=1e-4)
        assert found[2] == 2 * MICROS


def refuse_tensor_parallelism(rank: int) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from cona.advisor_norms import NormCollector
    from cona.errors import ConfigError

    model = parallelize_module(build()[0][1], init_device_mesh("cpu", (2,)), ColwiseParallel())
    try:
        NormCollector(model)
    except ConfigError as error:
        return str(error)
    return "accepted"


def test_tensor_parallel_parameters_are_refused() -> None:
    for told in run_ranks(refuse_tensor_parallelism, 2):
        assert told.startswith("2 of 2 parameters are whole on no rank (tensor parallelism)")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_example_runs(tmp_path: Path, kind: str) -> None:
    script = ROOT / "examples" / "data_parallel_loop.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), kind, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "GNS" in done.stdout
    assert '"reason":' in (tmp_path / "advice.jsonl").read_text()
