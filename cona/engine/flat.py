"""A model's parameters, gradients and Adam moments as a few flat buffers.

Most of a small model's step is Python overhead, so everything that treats all parameters alike
(norms, sums, clipping, AdamW, snapshots) runs on two or three long tensors instead of on dozens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    """AdamW over a module whose parameters become views of one buffer.

    Matrices come first in the buffer, since only they are decayed; biases and norms follow.
    """

    def __init__(self, module: nn.Module, training: TrainingSpec) -> None:
        parameters = sorted(module.parameters(), key=lambda p: p.dim() < 2)  # stable: by name order
        num_decayed = sum(p.numel() for p in parameters if p.dim() >= 2)
        self.clip_grad = training.clip_grad
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        self.moments = (torch.zeros_like(self.weights), torch.zeros_like(self.weights))
        _make_views(parameters, self.weights, self.gradient)
        self._optimizer = self._build(num_decayed, training)

    def _build(self, num_decayed: int, training: TrainingSpec) -> torch.optim.AdamW:
        slices = (slice(0, num_decayed), slice(num_decayed, None))
        leaves = [nn.Parameter(self.weights[rows]) for rows in slices]
        groups: list[dict[str, Any]] = [
            {"params": leaves[0]},
            {"params": leaves[1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            groups,
            lr=training.base_lr,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_eps,
            weight_decay=training.weight_decay,
            fused=True,
        )
        for leaf, rows in zip(leaves, slices, strict=True):
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
        if not math.isfinite(norm):
            return norm, True
        if norm > self.clip_grad:
            self.gradient.mul_(self.clip_grad / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return norm, False

    def copy_state(self) -> FlatState:
        """Return a copy of weights, moments and the number of updates."""
        first, second = self.moments
        return FlatState(
            weights=self.weights.clone(),
            moments=(first.clone(), second.clone()),
            num_updates=int(self._steps()[0].item()),
        )

    def set_state(self, state: FlatState) -> None:
        """Overwrite weights, moments and the number of updates with a copy's."""
        self.weights.copy_(state.weights)
        for mine, theirs in zip(self.moments, state.moments, strict=True):
            mine.copy_(theirs)
        for step in self._steps():
            step.fill_(state.num_updates)

    def _steps(self) -> list[Tensor]:
        return [state["step"] for state in self._optimizer.state.values()]


def square_norm(flat: Tensor) -> float:
    """Return the sum of squares of a float32 tensor, accumulated in float64."""
    return torch.linalg.vector_norm(flat, dtype=torch.float64).item() ** 2


def _make_views(parameters: list[nn.Parameter], weights: Tensor, gradient: Tensor) -> None:
    sizes = [p.numel() for p in parameters]
    for parameter, weight, grad in zip(
        parameters, weights.split(sizes), gradient.split(sizes), strict=True
    ):
        parameter.data = weight.view(parameter.shape)
        parameter.grad = grad.view(parameter.shape)
