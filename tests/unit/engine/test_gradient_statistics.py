"""The hooks' square norms: exact for large matrices, weighted by tokens, each parameter once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cona.engine.gradient_statistics import GradientStatistics

TOKENS = np.zeros((1, 1), np.int64)


def accumulated(
    parameters: dict[str, nn.Parameter], gradients: list[dict[str, torch.Tensor]], counts: list[int]
) -> float:
    """Send k_i/K g_i through the hooks of all parameters; return sum k_i/K |g_i|^2."""
    statistics = GradientStatistics(parameters, set(parameters), None, None)
    statistics.start(counts, [TOKENS] * len(counts))
    for gradient, count in zip(gradients, counts, strict=True):
        loss = sum((parameters[name] * gradient[name]).sum() for name in parameters)
        (loss * count / sum(counts)).backward()
    return statistics.finish(sum(counts), 1.0)


@pytest.mark.parametrize("shape", [(2048, 1024), (1024, 2048), (64,)])
def test_large_matrices_lose_no_digits(shape):
    generator = torch.Generator().manual_seed(0)
    size = torch.rand(shape, generator=generator) ** 6
    gradient = torch.randn(shape, generator=generator) * size
    found = accumulated({"w": nn.Parameter(torch.zeros(shape))}, [{"w": gradient}], [1])
    assert found == pytest.approx(gradient.double().square().sum().item(), rel=1e-6)


def test_micro_batches_weigh_as_many_tokens_as_they_predict():
    parameters = {"w": nn.Parameter(torch.zeros(2, 1)), "b": nn.Parameter(torch.zeros(1))}
    first = {"w": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([4.0])}  # |g|^2 = 25
    second = {"w": torch.tensor([[0.0], [1.0]]), "b": torch.tensor([1.0])}  # |g|^2 = 2
    found = accumulated(parameters, [first, second], [1, 3])
    assert found == pytest.approx(25 * 1 / 4 + 2 * 3 / 4)
