"""What the self-test runs: small models, their batches, and layouts that change on the way.

The models are as wide and as deep as there are ranks, so that every layout divides them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cona.engine.base import Batch
from cona.specs import LadderSpec, ModelSpec, TrainingSpec
from cona.strategy import Layout, StrategySpace, divisors

FAMILIES = ("gpt", "llama", "bert")

NUM_STEPS = 5
"""Iterations of one layout that are compared with the single process."""

NUM_LIVE_STEPS = 20
"""Iterations of the run through all layouts."""

MBS = 2
"""Samples of a micro-batch, under every layout."""

LR = 1e-3
SEED = 0

ADAM_EPS = 1e-5
"""ASSUMED: Adam's usual 1e-8 would turn a gradient that is zero but for rounding, which differs
from layout to layout, into a whole step of the learning rate."""


def small_model(family: str, nproc: int) -> ModelSpec:
    """Return a model that every layout of up to ``nproc`` ranks divides.

    Its vocabulary is padded; GPT and BERT tie their embeddings and Llama does not, but has
    grouped-query attention.

    Args:
        family: gpt, llama or bert.
        nproc: ranks.
    """
    width, is_llama = max(2, nproc), family == "llama"
    return ModelSpec(
        name=f"selftest-{family}",
        description="the self-test's",
        family=family,
        num_layers=width,
        hidden_size=16 * width,
        num_heads=width * (2 if is_llama else 1),
        num_kv_heads=width,
        ffn_size=32 * width,
        vocab_size=500,
        seq_length=16,
        tp_max=width,
        tied_embeddings=not is_llama,
        training=TrainingSpec(base_lr=LR, min_lr=LR, decay_tokens=1_000_000, adam_eps=ADAM_EPS),
        source="ASSUMED: as small as the layouts allow",
    )


def world_sizes(nproc: int) -> list[int]:
    """Return the numbers of ranks that are tried: those that divide ``nproc``, 1 only alone."""
    return divisors(nproc)[1:] or [1]


def layouts(spec: ModelSpec, num_ranks: int) -> tuple[Layout, ...]:
    """Return every layout of a number of ranks."""
    return StrategySpace(model=spec, num_gpus=num_ranks, ladder=LadderSpec()).layouts


def batches(spec: ModelSpec) -> list[Batch]:
    """Return the batches of a run; the batch size doubles and halves every four iterations.

    Few tokens make up most of the text, so that there is something to learn: else the true gradient
    would be lost in the noise, and the noise scale, which divides by it, in the rounding.
    """
    rng = np.random.default_rng(SEED)
    smallest = MBS * spec.num_layers  # one micro-batch for each of as many replicas as ranks
    sizes = [smallest * (1 + step // 4 % 2) for step in range(NUM_LIVE_STEPS)]
    return [_batch(spec, size, rng) for size in sizes]


def _batch(spec: ModelSpec, num_samples: int, rng: np.random.Generator) -> Batch:
    shape = (num_samples, spec.seq_length)
    text = rng.random((num_samples, spec.seq_length + 1)) ** 8 * spec.vocab_size
    tokens = text.astype(np.int64)
    mask = np.ones(shape, bool) if spec.is_causal else rng.random(shape) < 0.3
    return Batch(tokens=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy(), loss_mask=mask)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run on real ranks, to be compared with the run on a single process."""

    family: str
    """Of the model."""
    precision: str
    """fp32, bf16 or fp16; the single process is always fp32."""
    layouts: tuple[Layout, ...]
    """One that stays, or all of them in turn, by live switches, back to the first."""

    @property
    def num_ranks(self) -> int:
        """Ranks that run together."""
        return self.layouts[0].num_gpus

    @property
    def is_live(self) -> bool:
        """Whether layouts change on the way."""
        return len(self.layouts) > 1

    @property
    def num_steps(self) -> int:
        """Iterations."""
        return NUM_LIVE_STEPS if self.is_live else NUM_STEPS

    def layout_at(self, step: int) -> Layout:
        """Return the layout of an iteration, counted from 0."""
        turns = (*self.layouts, self.layouts[0])
        return turns[step * len(turns) // self.num_steps] if self.is_live else self.layouts[0]

    def __str__(self) -> str:
        return f"live, {self.num_ranks} ranks" if self.is_live else str(self.layouts[0])


def cases_of(family: str, num_ranks: int, nproc: int, precisions: tuple[str, ...]) -> list[Case]:
    """Return what one launch runs: each layout, and then all of them in one run.

    Args:
        family: of the model.
        num_ranks: of this launch.
        nproc: ranks of the largest launch, which the model is made for.
        precisions: each of them.
    """
    found = layouts(small_model(family, nproc), num_ranks)
    runs = [(layout,) for layout in found] + ([found] if len(found) > 1 else [])
    return [
        Case(family=family, precision=precision, layouts=run)
        for precision in precisions
        for run in runs
    ]
