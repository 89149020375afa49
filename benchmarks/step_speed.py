"""Tokens per second of the engine against an equal model in plain PyTorch, on one thread.

Both train in one process, step by step in turn, so that a busy machine slows both; the ratio is
the median over pairs. Run from the repository: ``python benchmarks/step_speed.py``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import numpy as np
import torch
from plain_models import PlainModel, copy_weights
from tabulate import tabulate

from cona.config import load, override
from cona.engine.base import Batch
from cona.engine.megatron import MegatronEngine, build_engine
from cona.specs import ModelSpec

PROXIES = ("gpt3-1.3b-proxy", "bert-large-proxy", "llama-3.2-1b-proxy")
GOAL = {"num_layers": 4, "hidden_size": 256, "num_heads": 8, "num_kv_heads": 8, "ffn_size": 1024}
LR = 1e-3


def random_batch(spec: ModelSpec, samples: int) -> Batch:
    """Return random tokens; 15 % of the targets count for BERT, all of them otherwise."""
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, spec.vocab_size, (2, samples, spec.seq_length))
    mask = np.ones_like(tokens, bool) if spec.is_causal else rng.random(tokens.shape) < 0.15
    return Batch(tokens=tokens, labels=labels, loss_mask=mask)


def plain_step(spec: ModelSpec, engine: MegatronEngine, batch: Batch, mbs: int) -> Callable:
    """Return a plain PyTorch optimizer step on the same weights, batch and micro-batches."""
    model = PlainModel(spec)
    copy_weights(spec, engine.model, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    labels = np.where(batch.loss_mask, batch.labels, -100)
    inputs = [torch.from_numpy(x).split(mbs) for x in (batch.tokens, labels)]
    num_tokens = int(batch.loss_mask.sum())

    def step() -> None:
        optimizer.zero_grad()
        for tokens, targets in zip(*inputs, strict=True):
            (model.losses(tokens, targets).sum() / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.training.clip_grad)
        optimizer.step()

    return step


def compare(spec: ModelSpec, gbs: int, mbs: int, repeats: int) -> list[object]:
    """Time one shape; return a row of the table."""
    engine, batch = build_engine(spec, seed=0), random_batch(spec, gbs)
    steps = {
        "plain": plain_step(spec, engine, batch, mbs),
        "bare": lambda: engine.train_step(batch, exec_mbs=mbs, lr=LR, gradient_statistics=False),
        "full": lambda: engine.train_step(batch, exec_mbs=mbs, lr=LR),
    }
    seconds = interleaved(steps, repeats)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    ratios = {
        name: statistics.median(p / s for p, s in zip(seconds["plain"], seconds[name], strict=True))
        for name in ("bare", "full")
    }
    tokens = gbs * spec.seq_length
    shape = f"{spec.num_layers} x {spec.hidden_size}, seq {spec.seq_length}"
    per_sample = [medians[n] / gbs * 1e3 for n in ("plain", "bare", "full")]
    rate = tokens / medians["bare"]
    return [spec.name, shape, f"{gbs // mbs} x {mbs}", rate, *per_sample, *ratios.values()]


def interleaved(steps: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Run the steps in turn; return the seconds of each, without two rounds of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: s[2:] for name, s in seconds.items()}


@click.command()
@click.option("--repeats", default=15, show_default=True, help="Steps timed per shape.")
def main(repeats: int) -> None:
    """Print the engine's speed against plain PyTorch; the goal is 0.85 in the first row."""
    proxy = load(ModelSpec, PROXIES[0])
    goal = override(proxy, {**GOAL, "name": "goal-gpt", "seq_length": 128})
    rows = [compare(goal, 8, 8, repeats)]
    for name in PROXIES:
        spec = load(ModelSpec, name)
        rows += [compare(spec, g, m, repeats) for g, m in ((8, 4), (16, 8), (32, 16), (64, 16))]
    header = ["model", "shape", "n x mbs", "tokens/s", "plain ms/sample", "without statistics"]
    header += ["with", "plain/without", "plain/with"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=("", "", "", ".0f", *[".2f"] * 5)))


if __name__ == "__main__":
    main()
