"""What an experiment is about: models, clusters, and the settings of a tier.

Each class is one YAML mapping under ``config/``; ``cona.config`` loads and validates them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from cona.errors import nearest
from cona.strategy import Techniques

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.@-]*$")]
"""A name that is also a folder's."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Spec(BaseModel):
    """Base of all specifications: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


# --- models -------------------------------------------------------------------------------------


class TrainingSpec(Spec):
    """How a model is optimised: AdamW and the two ends of its learning-rate schedule."""

    base_lr: PositiveFloat
    """Peak learning rate at the base global batch size."""
    min_lr: NonNegativeFloat
    """Learning rate at the end of the decay."""
    decay_tokens: PositiveInt
    """Tokens over which the cosine decays; a tier may replace it."""
    warmup_fraction: Fraction = 0.01
    """Linear warm-up, as a fraction of the decay tokens."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW weight decay of matrices; biases and norms are not decayed."""
    adam_beta1: Fraction = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of Adam's second moment."""
    adam_eps: PositiveFloat = 1e-8
    """Adam's epsilon."""
    clip_grad: PositiveFloat = 1.0
    """Largest global gradient norm; the statistics see the gradient before clipping."""


class ModelSpec(Spec):
    """A transformer language model of one of the paper's three families."""

    name: Name
    """Name on the command line and in results."""
    description: str
    """One line for `cona models`."""
    family: Literal["gpt", "bert", "llama"]
    """gpt: learned positions, LayerNorm, GeLU; llama: RoPE, RMSNorm, SwiGLU, GQA; bert: encoder."""
    num_layers: PositiveInt
    """Transformer layers."""
    hidden_size: PositiveInt
    """Width of the residual stream, h."""
    num_heads: PositiveInt
    """Attention heads, a."""
    num_kv_heads: PositiveInt
    """Key/value heads (equal to num_heads without grouped-query attention)."""
    ffn_size: PositiveInt
    """Inner width of the feed-forward block, f."""
    vocab_size: PositiveInt
    """Tokens that the tokenizer knows."""
    seq_length: PositiveInt
    """Tokens per sample, s."""
    tp_max: PositiveInt = 8
    """Largest tensor-parallel degree: fixes the padded vocabulary for all layouts."""
    tied_embeddings: bool = True
    """The LM head shares the token embedding's weights."""
    norm_eps: PositiveFloat = 1e-5
    """Epsilon of the normalisation layers."""
    rope_theta: PositiveFloat = 10000.0
    """Base of the rotary position embedding (llama)."""
    dropout: Fraction = 0.0
    """Dropout of hidden states and attention; 0 wherever equality across layouts is claimed."""
    priced_as: str | None = None
    """A proxy's full-size model: the clock accounts T of that one. None: the model itself."""
    training: TrainingSpec
    """Optimiser settings."""
    source: str
    """Where the figures come from."""

    @model_validator(mode="after")
    def _divides(self) -> ModelSpec:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Elements per attention head, e."""
        return self.hidden_size // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Vocabulary padded to a multiple of 128*tp_max, the same under every layout."""
        multiple = 128 * self.tp_max
        return math.ceil(self.vocab_size / multiple) * multiple

    @property
    def is_causal(self) -> bool:
        """Whether the model predicts the next token (True) or masked tokens (False)."""
        return self.family != "bert"

    @property
    def perplexity_name(self) -> str:
        """Name of the perplexity in tables: BERT's is over masked tokens."""
        return "ppl" if self.is_causal else "mlm_ppl"

    @property
    def num_params(self) -> int:
        """Parameters, from the shapes (padded vocabulary; LayerNorm has two vectors)."""
        h, f, kv = self.hidden_size, self.ffn_size, self.num_kv_heads * self.head_size
        if self.family == "llama":
            layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h
            rest = h
        else:
            layer = 4 * h * h + 2 * h * f + (4 * h + f + h) + 4 * h
            rest = self.seq_length * h + 2 * h
        if self.family == "bert":  # token types, the LM head's dense + LayerNorm, its output bias
            rest += 2 * h + h * h + 3 * h + self.padded_vocab_size
        embeddings = self.padded_vocab_size * h * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + rest + embeddings


# --- clusters -----------------------------------------------------------------------------------


class LinkSpec(Spec):
    """One tier of a network, as one GPU sees it."""

    bandwidth_gb_s: PositiveFloat
    """Bandwidth in GB/s (1e9 bytes per second) in one direction."""
    efficiency: Annotated[float, Field(gt=0, le=1)]
    """Fraction of the bandwidth that large messages reach."""
    latency_us: NonNegativeFloat
    """Latency of one message or collective in microseconds."""


class ClusterSpec(Spec):
    """A homogeneous GPU cluster."""

    name: Name
    """Name on the command line and in results."""
    description: str
    """One line for `cona clusters`."""
    gpu: str
    """GPU type, one that the cost model knows (e.g. a100-80g)."""
    num_nodes: PositiveInt
    """Number of nodes."""
    gpus_per_node: PositiveInt
    """GPUs in each node."""
    gpu_memory_gb: PositiveFloat
    """Memory of one GPU in GB (1e9 bytes)."""
    intra_node: LinkSpec
    """Link between GPUs of one node."""
    inter_node: LinkSpec
    """Link between nodes, as one GPU sees it."""
    source: str
    """Where the figures come from."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in the cluster, N."""
        return self.num_nodes * self.gpus_per_node


# --- tiers --------------------------------------------------------------------------------------


class LadderSpec(Spec):
    """Global batch sizes that policies choose from: doubling from gbs_min to gbs_max."""

    gbs_min: PositiveInt = 8
    """Smallest global batch size, gbs_0; every run of CONA starts there."""
    gbs_max: PositiveInt = 256
    """Largest global batch size."""
    mbs_max: PositiveInt = 32
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
    """`stdlib` (the running Python's standard library) or `text:<path>` (a file or a folder)."""


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
    warmup_iterations: NonNegativeInt = 2
    """Measured clock: iterations after a start and after every switch of layout that count on the
    clock but not in T_cur. ASSUMED."""


class BudgetSpec(Spec):
    """When a run stops: all policies of a model and seed get the same seconds."""

    iterations: PositiveInt = 10_000
    """Modelled clock: time_budget_s = iterations * T(best strategy at gbs_min)."""
    seconds: PositiveFloat | None = None
    """Measured clock: time_budget_s, which must be given there."""


class EvaluationSpec(Spec):
    """When and on what perplexity is measured."""

    interval_samples: PositiveInt
    """Grid spacing in consumed samples: a multiple of gbs_max."""
    num_samples: PositiveInt
    """Sequences of the fixed evaluation set (TTP)."""
    probe_samples: PositiveInt
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
    base_gbs: PositiveInt = 8
    """Global batch size at which the factor is 1."""
    scale_min: bool = True
    """Scale min_lr by the factor too (the release does not)."""
    factor_max: PositiveFloat | None = None
    """Cap on the factor; None: no cap."""
    decay_samples: PositiveInt | None = None
    """Samples of the cosine decay; None: the model's decay_tokens."""


class ControllerSpec(Spec):
    """When `cona` may switch (method.md 3); `cona-paper` has its own rule and ignores these."""

    min_iterations: PositiveInt = 8
    """Iterations since the start or the last switch before the next one."""
    min_samples: PositiveInt = 1000
    """Samples since the start or the last switch before the next one."""
    z: NonNegativeFloat = 1.64
    """Standard errors by which R > 1 must be significant."""
    switch_cost_prior: SwitchCostPreset = "live"
    """What a switch of layout is believed to cost before one was measured."""


class EngineSpec(Spec):
    """What trains on real ranks; the modelled clock's virtual cluster has one engine, in fp32."""

    kind: Literal["megatron", "deepspeed"] = "megatron"
    """Library that shards the model."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of weights and activations in the layers; master weights and moments are fp32."""
    switch_path: Literal["live", "universal"] = "live"
    """How a layout is changed: in memory (megatron), or through DeepSpeed's universal checkpoint
    (deepspeed, the paper's way)."""


class OracleSpec(Spec):
    """How the greedy oracle looks ahead (method.md 9)."""

    decisions: PositiveInt | None = 10
    """Decision points per time budget; None: every iteration (k_g = 1, the paper's wording)."""
    forks: Literal["ladder", "neighbours"] = "ladder"
    """Batch sizes tried at each point: the whole ladder, or {g/2, g, 2g}."""


class JobSpec(Spec):
    """What a batch system is asked for a training job; changes no result (slurm/README.md)."""

    runtime_min: PositiveInt = 240
    """Time limit in minutes; a longer run saves, requeues itself and continues. ASSUMED: short
    jobs start sooner."""
    save_s: PositiveInt = 300
    """Seconds before the time limit at which a run is told to save. ASSUMED."""
    memory_gb: PositiveFloat | None = None
    """Host memory of a rank in GB (1e9 bytes); None: derived from the model's parameters."""
    cpus_per_rank: PositiveInt = 1
    """CPU cores of a rank."""
    gpus: NonNegativeInt = 0
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


class TierSpec(Spec):
    """One size of the experiment: which models, policies and seeds, for how long."""

    name: Name
    """Name on the command line; results go to results/<name>/."""
    description: str
    """One line for `cona tiers`."""
    gives_verdicts: bool = False
    """Whether the claims table may judge from this tier; smoke and quick never do."""
    data: DataSpec = DataSpec()
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of models under config/models/."""
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    """Policies with their parameters, e.g. fixed-best-gbs64."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """Seeds: of the initial weights and of the sample order."""
    seeds_of: dict[str, Annotated[tuple[Seed, ...], Field(min_length=1)]] = {}
    """Seeds of the policies that have others: more for the headline, fewer for the costly."""
    cluster: str = "a100x4-2node"
    """Name of the target cluster under config/clusters/."""
    clock: ClockSpec = ClockSpec()
    techniques: Techniques = Techniques(zero_stage=1, recompute="full")
    """What every strategy uses beside its degrees; the default is the paper's."""
    belief: str = "improved"
    """The policies' own time model, unless they bring one; not the same as clock.time_source."""
    ladder: LadderSpec = LadderSpec()
    budget: BudgetSpec = BudgetSpec()
    evaluation: EvaluationSpec
    gns: GnsSpec = GnsSpec()
    learning_rate: LearningRateSpec = LearningRateSpec()
    controller: ControllerSpec = ControllerSpec()
    oracle: OracleSpec = OracleSpec()
    engine: EngineSpec = EngineSpec()
    exec_mbs_max: PositiveInt = 16
    """Largest micro-batch that the virtual cluster really executes, samples."""
    snapshot_interval_samples: PositiveInt
    """Samples between snapshots of a trajectory, or checkpoints of a measured run: what a kill can
    cost."""
    snapshots_kept: PositiveInt | None = None
    """Latest snapshots kept in each segment; None: all, so that a later branch starts nearby."""
    share_process: bool = False
    """Train a model's policies in two processes instead of one job per run."""
    jobs: JobSpec = JobSpec()

    def seeds_for(self, policy: str) -> tuple[int, ...]:
        """Return the seeds under which a policy is run."""
        return self.seeds_of.get(policy, self.seeds)

    def settings(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return what runs depend on; what only the measured clock has is left out elsewhere.

        Args:
            without: names of settings to leave out.
        """
        left_out: dict[str, Any] = dict.fromkeys(without, True)
        if self.clock.kind == "modelled":
            left_out |= {"engine": True, "clock": {"warmup_iterations"}, "budget": {"seconds"}}
        return self.model_dump(mode="json", exclude=left_out)

    @model_validator(mode="after")
    def _once(self) -> TierSpec:
        for key in ("models", "policies", "seeds"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                twice = next(v for v in values if values.count(v) > 1)
                raise ValueError(f"{key}: '{twice}' is listed twice; list it once")
        return self

    @model_validator(mode="after")
    def _seeds_of_policies(self) -> TierSpec:
        for policy, seeds in self.seeds_of.items():
            if policy not in self.policies:
                raise ValueError(
                    f"seeds_of: '{policy}' is not among the policies: "
                    f"{nearest(policy, self.policies)}"
                )
            if len(set(seeds)) < len(seeds):
                raise ValueError(f"seeds_of: '{policy}' lists a seed twice; list it once")
        return self

    @model_validator(mode="after")
    def _grid(self) -> TierSpec:
        interval, gbs_max = self.evaluation.interval_samples, self.ladder.gbs_max
        if interval % gbs_max:
            nearest = max(1, round(interval / gbs_max)) * gbs_max
            raise ValueError(
                f"evaluation.interval_samples {interval} is not a multiple of gbs_max {gbs_max}; "
                f"nearest: {nearest}"
            )
        return self
