"""Norms of a plain loop: equal to those of every micro-batch's own gradient."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cona.advisor import SquaredNorms
from cona.advisor_norms import NormCollector, square
from cona.errors import ConfigError

ROOT = Path(__file__).parents[2]


def small() -> nn.Sequential:
    """Return a model with a tied weight, a scalar and a bias."""
    torch.manual_seed(0)
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    last.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), last)
    model.register_parameter("scale", nn.Parameter(torch.tensor(0.5)))
    return model


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) * model.scale).square().mean()


def by_hand(model: nn.Module, micros: list[Tensor]) -> tuple[float, float]:
    """Return mean_i |g_i|^2 and |G|^2 from one gradient after the other."""
    rows = []
    for micro in micros:
        gradients = torch.autograd.grad(loss_of(model, micro), list(model.parameters()))
        rows.append(torch.cat([g.double().flatten() for g in gradients]))
    rows = torch.stack(rows)
    return float(rows.square().sum(1).mean()), float(rows.mean(0).square().sum())


def backward(model: nn.Module, micros: list[Tensor], scale: float = 1.0) -> None:
    for micro in micros:
        (scale * loss_of(model, micro) / len(micros)).backward()


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 99), st.sampled_from([1.0, 4096.0]))
def test_norms_are_those_of_each_gradient(count: int, mbs: int, seed: int, scale: float) -> None:
    model = small()
    micros = list(
        torch.randn(count * mbs, 6, generator=torch.Generator().manual_seed(seed)).split(mbs)
    )
    norms = NormCollector(model)
    backward(model, micros, scale)
    found = norms.take(loss_scale=scale)
    mean_sq, sq_of_mean = by_hand(model, micros)
    assert found.mean_sq == pytest.approx(mean_sq, rel=1e-5)
    assert found.sq_of_mean == pytest.approx(sq_of_mean, rel=1e-5)
    assert found.num_gradients == count


def test_two_opposite_gradients_by_hand() -> None:
    # Loss w*x of a scalar w: g is x. 3 and -1: mean of squares 5, square of the mean 1.
    weight = nn.Linear(1, 1, bias=False)
    norms = NormCollector(weight)
    for x in (3.0, -1.0):
        (weight(torch.tensor([[x]])).sum() / 2).backward()
    found = norms.take()
    assert (found.mean_sq, found.sq_of_mean) == pytest.approx((5.0, 1.0))
    terms = found.terms(gbs=2)
    assert terms is not None
    assert (terms.tr_sigma, terms.mu_sq) == pytest.approx((8.0, -3.0))  # (5-1)*2/1, (2*1-5)/1


def test_every_iteration_starts_anew() -> None:
    model, taken = small(), []
    norms = NormCollector(model)
    micros = list(torch.ones(4, 6).split(2))
    for _ in range(2):
        model.zero_grad()
        backward(model, micros)
        taken.append(norms.take())
    assert taken[0] == taken[1]


def test_gradients_that_overflowed_give_no_terms() -> None:
    model = small()
    model.scale.data.fill_(1e30)
    norms = NormCollector(model)
    backward(model, [torch.ones(1, 6), torch.ones(1, 6)])
    assert norms.take().terms(gbs=2) is None


def test_taking_without_a_backward_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="no backward pass"):
        NormCollector(small()).take()


def test_a_model_that_trains_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter that requires a gradient"):
        NormCollector(small().requires_grad_(False))


def test_closed_hooks_see_nothing() -> None:
    model = small()
    norms = NormCollector(model)
    norms.close()
    backward(model, [torch.ones(1, 6)])
    with pytest.raises(ConfigError, match="no backward pass"):
        norms.take()


def test_square_of_a_long_gradient_is_exact() -> None:
    assert float(square(torch.full((3000, 4000), 0.1))) == pytest.approx(12e4, rel=1e-5)


def test_the_norms_are_values() -> None:
    assert SquaredNorms(mean_sq=1, sq_of_mean=2, num_gradients=3).num_gradients == 3


def test_the_plain_example_learns_and_says_why(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "plain_loop.py"), str(folder)],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d\d)", done.stdout)]
    assert losses[0] > 2 > 1.6 > losses[-1]  # it ends near ln 4 = 1.39
    assert re.search(r"gbs \d+: (stay|go to gbs \d+), (net gain|R = )", done.stdout)
    assert f"see {folder}" in done.stdout
    assert '"reason":' in (folder / "advice.jsonl").read_text()
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert len(saved["advisor"]["seen"]) > 8
    assert not list(elsewhere.iterdir())
