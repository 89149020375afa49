"""The sections of a tier, each a mapping in its YAML file."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cona.specs.base import Count, NonNegative, NonNegativeCount, Positive, Spec

LARGEST_GBS = 2**20
"""Samples: beyond any batch in use, and every size up to it can be searched in no time."""


class LadderSpec(Spec):
    """Global batch sizes that policies choose from: doubling from gbs_min to gbs_max."""

    gbs_min: Annotated[Count, Field(le=LARGEST_GBS)] = 8
    """Smallest global batch size, gbs_0; every run of CONA starts there."""
    gbs_max: Annotated[Count, Field(le=LARGEST_GBS)] = 256
    """Largest global batch size."""
    mbs_max: Annotated[Count, Field(le=LARGEST_GBS)] = 32
    """Largest micro-batch size."""

    @model_validator(mode="after")
    def _doubles(self) -> LadderSpec:
        ratio = self.gbs_max / self.gbs_min
        if ratio < 1 or not math.log2(ratio).is_integer():
            nearest = self.gbs_min * 2 ** max(0, round(math.log2(max(ratio, 1))))
            raise ValueError(
                f"gbs_max {self.gbs_max} is not gbs_min {self.gbs_min} times a power of two; "
                f"nearest: {nearest}"
            )
        return self

    @property
    def rungs(self) -> tuple[int, ...]:
        """The global batch sizes, ascending."""
        count = int(math.log2(self.gbs_max // self.gbs_min)) + 1
        return tuple(self.gbs_min * 2**i for i in range(count))


class DataSpec(Spec):
    """Which text is trained on."""

    corpus: str = "stdlib"
    """`stdlib` (the running Python's standard library), `wikitext-103`, `wikitext:<folder>`, or
    `text:<path>` (a file or a folder); see docs/data.md."""


SwitchCostPreset = Literal["live", "restart", "zero"]
ClockKind = Literal["modelled", "measured"]


class ClockSpec(Spec):
    """What a second is (method.md 7)."""

    kind: ClockKind = "modelled"
    """modelled: T(s) of the accounted strategy on the target cluster, never CPU time; measured:
    wall time of the ranks that really run the strategy."""
    time_source: str = "improved"
    """The reference time source: a cost model's name, or `table:<path>` (measured iterations).
    On the measured clock only policies that plan offline look at it."""
    switch_cost: SwitchCostPreset = "live"
    """Modelled clock: switch-cost model that the run is charged; results report all three."""
    warmup_iterations: NonNegativeCount = 2
    """Measured clock: iterations after a start and after every switch of layout that count on the
    clock but not in T_cur. ASSUMED."""


class BudgetSpec(Spec):
    """When a run stops: all policies of a model and seed get the same seconds."""

    iterations: Count = 10_000
    """time_budget_s = iterations * T(best strategy at gbs_min), by the reference time source."""
    seconds: Positive | None = None
    """Measured clock: time_budget_s itself; None: as on the modelled clock."""


class EvaluationSpec(Spec):
    """When and on what perplexity is measured."""

    interval_samples: Count
    """Grid spacing in consumed samples: a multiple of gbs_max."""
    num_samples: Count
    """Sequences of the fixed evaluation set (TTP)."""
    probe_samples: Count
    """Sequences of the oracle's probe set, disjoint from the evaluation set."""


class GnsSpec(Spec):
    """Smoothing of the gradient noise scale (method.md 2)."""

    decay_per_sample: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """EMA decay per consumed sample; one iteration decays by decay**gbs."""


LrRule = Literal[
    "constant",
    "linear",
    "sqrt",
    "power",
    "piecewise",
    "adascale",
    "cona_adascale",
    "seesaw",
    "seesaw_to_zero",
]


class LearningRateSpec(Spec):
    """How the learning rate follows the batch size and the consumed tokens (method.md 5)."""

    rule: LrRule = "sqrt"
    """Factor of the base learning rate as a function of gbs; sqrt is ASSUMED for Adam."""
    base_gbs: Count = 8
    """Global batch size at which the factor is 1."""
    scale_min: bool = True
    """Scale min_lr by the factor too (the release does not)."""
    factor_max: Positive | None = None
    """Cap on the factor; None: no cap."""
    decay_samples: Count | None = None
    """Samples of the cosine decay; None: the model's decay_tokens."""


class ControllerSpec(Spec):
    """When `cona` may switch (method.md 3); `cona-paper` has its own rule and ignores these."""

    min_iterations: Count = 8
    """Iterations since the start or the last switch before the next one."""
    min_samples: Count = 1000
    """Samples since the start or the last switch before the next one."""
    z: NonNegative = 1.64
    """Standard errors by which R > 1 must be significant."""
    switch_cost_prior: SwitchCostPreset = "live"
    """What a switch of layout is believed to cost before one was measured."""


EngineKind = Literal["megatron", "deepspeed"]


class EngineSpec(Spec):
    """What trains on real ranks; the modelled clock's virtual cluster has one engine, in fp32."""

    kind: EngineKind = "megatron"
    """Library that shards the model."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of weights and activations in the layers; master weights and moments are fp32."""
    switch_path: Literal["live", "universal"] = "live"
    """How a layout is changed: in memory (megatron), or through DeepSpeed's universal checkpoint
    (deepspeed, the paper's way)."""


class OracleSpec(Spec):
    """How the greedy oracle looks ahead (method.md 9)."""

    decisions: Count | None = 10
    """Decision points per time budget; None: every iteration (k_g = 1, the paper's wording)."""
    forks: Literal["ladder", "neighbours"] = "ladder"
    """Batch sizes tried at each point: the whole ladder, or {g/2, g, 2g}."""


class DivergenceSpec(Spec):
    """When a run is given up as diverged (method.md 7); a run that does not diverge ignores it."""

    patience_iterations: Count = 20
    """Lost iterations in a row after which a run ends: their loss or gradient is not finite, or
    their loss too large. ASSUMED: an fp16 loss scale needs 14 to fall from 2^12 to 1."""
    loss_factor: Annotated[float, Field(gt=1)] = 2.0
    """Times the first iteration's loss above which a loss is too large. ASSUMED: a model that knows
    nothing is at once; no healthy run here came above 1.1."""


class JobSpec(Spec):
    """What a batch system is asked for a training job; changes no result (slurm/README.md)."""

    runtime_min: Count = 240
    """Time limit in minutes; a longer run saves, requeues itself and continues. ASSUMED: short
    jobs start sooner."""
    save_s: Count = 300
    """Seconds before the time limit at which a run is told to save. ASSUMED."""
    memory_gb: Positive | None = None
    """Host memory of a rank in GB (1e9 bytes); None: derived from the model's parameters."""
    cpus_per_rank: Count = 1
    """CPU cores of a rank."""
    gpus: NonNegativeCount = 0
    """Modelled clock: GPUs of the one process that trains; the measured clock has the cluster's."""

    @model_validator(mode="after")
    def _trains(self) -> JobSpec:
        # SLURM may send its signal a minute early, and a run needs some time to start.
        latest_s = 60 * self.runtime_min - 120
        if self.save_s > latest_s:
            raise ValueError(
                f"jobs.save_s {self.save_s} leaves less than two minutes of jobs.runtime_min "
                f"{self.runtime_min} to train; nearest: "
                + (f"save_s {latest_s}" if latest_s > 0 else "runtime_min 3, save_s 60")
            )
        return self
