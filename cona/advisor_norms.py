"""Norms of gradients in a PyTorch loop: plain, under DistributedDataParallel, or under FSDP2.

A hook on a parameter sees the gradient of one micro-batch on one rank, before it is added to the
others' and before any all-reduce or reduce-scatter. That is the same moment in all three, so one
way serves them all; the communication hook of the wrapper stays free.
Source: method.md 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cona.advisor import SquaredNorms
from cona.errors import ConfigError


class NormCollector:
    """Collects mean_i |g_i|^2 and |G|^2 over the micro-batches of all ranks.

    Every micro-batch has the same number of samples, every rank the same number of micro-batches,
    and the loss of each is divided by that number, so that a parameter's ``grad`` ends as the mean.

    Args:
        model: the model as it is trained, already wrapped. Under FSDP2 the root module is sharded
            too, over all ranks.

    Raises:
        ConfigError: it trains nothing, its parameters are spread in another way (tensor
            parallelism), or over some ranks only.
    """

    def __init__(self, model: nn.Module) -> None:
        # Under FSDP2 these hold the reduced gradients; they stay the same objects.
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise ConfigError("the model has no parameter that requires a gradient")
        self._group = _group_of(model, self._parameters)
        self._sum = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        whole = list(_whole_parameters(model))
        if len(whole) < len(self._parameters):
            raise ConfigError(
                f"{len(self._parameters) - len(whole)} of {len(self._parameters)} parameters are "
                "whole on no rank (tensor parallelism); norms need plain, DDP or FSDP2 parameters"
            )
        self._counts = [0] * len(whole)
        self._handles = [p.register_hook(self._hook(i)) for i, p in enumerate(whole)]

    def take(self, loss_scale: float = 1.0) -> SquaredNorms:
        """Return the norms since the last call; a collective on all ranks.

        Args:
            loss_scale: factor by which the losses were multiplied (mixed precision), if the
                gradients still are: call it before they are unscaled, clipped or set to zero.

        Raises:
            ConfigError: no backward pass came before.
        """
        num_local = max(self._counts)
        if num_local == 0:
            raise ConfigError("take() found no backward pass since the last one; call it after")
        world = dist.get_world_size(self._group) if self._group else 1
        parts = torch.stack([self._sum, self._mean_gradient_part(world)])
        if self._group:
            dist.all_reduce(parts, group=self._group)
        seen, sq_of_mean = (float(part) / loss_scale**2 for part in parts.tolist())
        self._sum.zero_()
        self._counts = [0] * len(self._counts)
        # What was seen is g_i / num_local, so its square is num_local^2 too small.
        return SquaredNorms(
            mean_sq=seen * num_local / world,
            sq_of_mean=sq_of_mean,
            num_gradients=num_local * world,
        )

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def see(gradient: Tensor) -> None:
            self._counts[index] += 1
            self._sum.add_(square(gradient).to(self._sum.device))

        return see

    def _mean_gradient_part(self, world: int) -> Tensor:
        """Return this rank's part of |G|^2; all ranks' parts add up to the whole."""
        total = torch.zeros_like(self._sum)
        for parameter in self._parameters:
            if (gradient := parameter.grad) is not None:
                local, copies = _local_part(gradient, world)
                total += square(local).to(total.device) / copies
        return total


def square(gradient: Tensor) -> Tensor:
    """Return the squared norm in float64.

    Row by row: over ten million elements at once the norm on a CPU is off by 1e-3.
    """
    rows = torch.atleast_1d(gradient.detach())
    return torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32).double().square().sum()


def _local_part(gradient: Tensor, world: int) -> tuple[Tensor, int]:
    """Return what this rank holds of a gradient, and how many ranks hold the same."""
    if not isinstance(gradient, DTensor):
        return gradient, world
    mesh, placements = gradient.device_mesh, gradient.placements
    copies = (mesh.size(i) for i, place in enumerate(placements) if place.is_replicate())
    return gradient.to_local(), math.prod(copies)


def _group_of(model: nn.Module, parameters: list[nn.Parameter]) -> Any:
    """Return the process group whose ranks' gradients are averaged; None: this process alone."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    meshes = [p.device_mesh for p in parameters if isinstance(p, DTensor)]
    if not meshes:
        return None
    if any(mesh.size() != dist.get_world_size() for mesh in meshes):
        raise ConfigError(
            f"the model is sharded over {meshes[0].size()} of {dist.get_world_size()} ranks; norms "
            "are collected over all ranks: shard it over all of them"
        )
    return dist.group.WORLD


def _whole_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield every parameter that gradients are computed of, once.

    FSDP2 computes with unsharded parameters, whose gradients are this rank's own. They are made
    once and kept, only their memory comes and goes; one module at a time is unsharded here.
    """
    known: set[int] = set()
    for module in (m for m in model.modules() if isinstance(m, FSDPModule)):
        module.unshard()
        yield from _new_parameters(module, known)
        module.reshard()
    yield from _new_parameters(model, known)


def _new_parameters(module: nn.Module, known: set[int]) -> Iterator[nn.Parameter]:
    for parameter in module.parameters():
        is_whole = parameter.requires_grad and not isinstance(parameter, DTensor)
        if is_whole and id(parameter) not in known:
            known.add(id(parameter))
            yield parameter
