"""A model's parameters, gradients and Adam moments as a few flat buffers.

Most of a small model's step is Python overhead, so everything that treats all parameters alike
(norms, sums, clipping, AdamW, snapshots) runs on two or three long tensors instead of on dozens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from cona.specs import TrainingSpec

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class FlatState:
    """Weights and optimizer state, a copy."""

    weights: Tensor
    """Shape [parameters], float32."""
    moments: tuple[Tensor, Tensor]
    """Adam's first and second moment, shapes [parameters]."""
    num_updates: int
    """Optimizer updates done."""


class FlatAdamW:
    """AdamW over one long vector of weights; matrices are decayed, biases and norms are not.

    Args:
        weights: shape [parameters], float32; updated in place.
        gradient: shape [parameters], float32; read at every update.
        sizes: how many weights each parameter has, and whether it is decayed, in the vector's
            order.
        training: the model's optimiser settings.
    """

    def __init__(
        self,
        weights: Tensor,
        gradient: Tensor,
        sizes: Sequence[tuple[int, bool]],
        training: TrainingSpec,
    ) -> None:
        self.clip_grad = training.clip_grad
        self.weights, self.gradient = weights, gradient
        self.moments = (torch.zeros_like(weights), torch.zeros_like(weights))
        self._optimizer = self._build(runs(sizes), training)

    def _build(self, stretches: list[tuple[slice, bool]], training: TrainingSpec) -> Any:
        leaves = [(nn.Parameter(self.weights[rows]), rows, decays) for rows, decays in stretches]
        groups: list[dict[str, Any]] = [
            {"params": leaf} if decays else {"params": leaf, "weight_decay": 0.0}
            for leaf, _, decays in leaves
        ]
        optimizer = torch.optim.AdamW(
            groups,
            lr=training.base_lr,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_eps,
            weight_decay=training.weight_decay,
            fused=True,
        )
        for leaf, rows, _ in leaves:
            leaf.grad = self.gradient[rows]
            moments = {name: m[rows] for name, m in zip(MOMENTS, self.moments, strict=True)}
            step = torch.zeros((), dtype=torch.float32, device=leaf.device)
            optimizer.state[leaf] = {"step": step, **moments}
        return optimizer

    def update(self, lr: float) -> tuple[float, bool]:
        """Clip the gradient in place and apply it, unless it is not finite.

        Args:
            lr: learning rate of this update.

        Returns:
            The gradient's norm before clipping, and whether the update was skipped.
        """
        norm = math.sqrt(square_norm(self.gradient))
        return norm, not self.apply(lr, norm)

    def apply(self, lr: float, norm: float, scale: float = 1.0) -> bool:
        """Clip the gradient in place and apply it, unless it is not finite.

        Args:
            lr: learning rate of this update.
            norm: of the whole model's gradient, of which this vector may be a part.
            scale: factor by which the gradient in the vector is too large (loss scale).

        Returns:
            Whether the update was applied.
        """
        if not math.isfinite(norm):
            return False
        if (factor := min(1.0, self.clip_grad / norm) / scale if norm else 1.0) != 1.0:
            self.gradient.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return True

    def copy_state(self) -> FlatState:
        """Return a copy of weights, moments and the number of updates."""
        first, second = self.moments
        return FlatState(
            weights=self.weights.clone(),
            moments=(first.clone(), second.clone()),
            num_updates=self.num_updates,
        )

    def set_state(self, state: FlatState) -> None:
        """Overwrite weights, moments and the number of updates with a copy's."""
        self.weights.copy_(state.weights)
        for mine, theirs in zip(self.moments, state.moments, strict=True):
            mine.copy_(theirs)
        self.num_updates = state.num_updates

    @property
    def num_updates(self) -> int:
        """Updates done, Adam's t."""
        return int(self._steps()[0].item())

    @num_updates.setter
    def num_updates(self, count: int) -> None:
        for step in self._steps():
            step.fill_(count)

    def _steps(self) -> list[Tensor]:
        return [state["step"] for state in self._optimizer.state.values()]


def square_norm(flat: Tensor) -> float:
    """Return the sum of squares of a float32 tensor, accumulated in float64."""
    return torch.linalg.vector_norm(flat, dtype=torch.float64).item() ** 2


def runs(sizes: Sequence[tuple[int, bool]]) -> list[tuple[slice, bool]]:
    """Merge neighbours with the same mark.

    Args:
        sizes: how many elements, and their mark, in the order of a vector.

    Returns:
        Stretches of the vector with their mark; neighbours differ.
    """
    merged: list[tuple[slice, bool]] = []
    start = 0
    for mark, group in groupby(sizes, key=itemgetter(1)):
        stop = start + sum(size for size, _ in group)
        merged.append((slice(start, stop), mark))
        start = stop
    return merged


def flatten(module: nn.Module) -> tuple[Tensor, Tensor, list[tuple[int, bool]]]:
    """Turn a module's parameters and gradients into views of two long vectors.

    Matrices come first, since only they are decayed; biases and norms follow.

    Returns:
        The weights, the gradient (zero), and what ``FlatAdamW`` calls sizes.
    """
    parameters = sorted(module.parameters(), key=lambda p: p.dim() < 2)  # stable: by name order
    weights = torch.cat([p.detach().flatten() for p in parameters])
    gradient = torch.zeros_like(weights)
    numels = [p.numel() for p in parameters]
    for parameter, weight, grad in zip(
        parameters, weights.split(numels), gradient.split(numels), strict=True
    ):
        parameter.data = weight.view(parameter.shape)
        parameter.grad = grad.view(parameter.shape)
    return weights, gradient, [(p.numel(), p.dim() >= 2) for p in parameters]
