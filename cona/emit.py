"""A strategy as the flags or the configuration of the trainers that people use.

Each emitter writes what its trainer can express; what it cannot is a note, never left out in
silence. Sources: the trainers' own documentation of their options (Megatron-LM core 0.16,
DeepSpeed 0.19, torchtitan's TOML configuration).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cona.errors import ConfigError, nearest
from cona.specs import ModelSpec
from cona.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What a user gives to a trainer."""

    text: str
    """Flags, or a configuration file."""
    notes: tuple[str, ...] = ()
    """What the text cannot say."""


def emit(trainer: str, strategy: Strategy, model: ModelSpec) -> Emitted:
    """Return a strategy in a trainer's own words.

    Args:
        trainer: a key of ``TRAINERS``.
        strategy: what to run.
        model: the model, for its shape.

    Raises:
        ConfigError: no such trainer, or it cannot run the strategy.
    """
    if trainer not in TRAINERS:
        raise ConfigError(f"unknown trainer '{trainer}': {nearest(trainer, TRAINERS)}")
    if rule := why_not(trainer, strategy):
        raise ConfigError(rule)
    return TRAINERS[trainer](strategy, model)


def why_not(trainer: str, strategy: Strategy) -> str | None:
    """Return why a trainer cannot run a strategy, or None.

    Args:
        trainer: a key of ``TRAINERS``.
        strategy: what to run.
    """
    stage = strategy.techniques.zero_stage
    if trainer == "deepspeed" and strategy.pp > 1 and stage >= 2:
        return f"zero_stage {stage}: DeepSpeed's pipeline (pp {strategy.pp}) allows at most stage 1"
    return None


def _megatron(strategy: Strategy, model: ModelSpec) -> Emitted:
    flags = _megatron_model(model) | _megatron_parallel(strategy, model)
    flags |= {"bf16": True, "overlap-grad-reduce": True}  # as the cost model prices it
    lines = (f"--{name}" if value is True else f"--{name} {value}" for name, value in flags.items())
    script = "pretrain_bert.py" if model.family == "bert" else "pretrain_gpt.py"
    return Emitted(
        text=" \\\n".join(lines) + "\n",
        notes=(f"for {script} on {strategy.num_gpus} ranks (torchrun starts them)",),
    )


def _megatron_model(model: ModelSpec) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "num-layers": model.num_layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.ffn_size,
        "num-attention-heads": model.num_heads,
        "seq-length": model.seq_length,
        "max-position-embeddings": model.seq_length,
        "norm-epsilon": f"{model.norm_eps:g}",
        "hidden-dropout": f"{model.dropout:g}",
        "attention-dropout": f"{model.dropout:g}",
    }
    if model.num_kv_heads != model.num_heads:
        flags |= {"group-query-attention": True, "num-query-groups": model.num_kv_heads}
    if model.family == "llama":
        flags |= {"normalization": "RMSNorm", "swiglu": True, "disable-bias-linear": True}
        flags |= {"position-embedding-type": "rope", "rotary-base": f"{model.rope_theta:g}"}
    if not model.tied_embeddings:
        flags["untie-embeddings-and-output-weights"] = True
    return flags


def _megatron_parallel(strategy: Strategy, model: ModelSpec) -> dict[str, Any]:
    techniques = strategy.techniques
    flags: dict[str, Any] = {
        "tensor-model-parallel-size": strategy.tp,
        "pipeline-model-parallel-size": strategy.pp,
        "context-parallel-size": techniques.context_parallel,
        "micro-batch-size": strategy.mbs,
        "global-batch-size": strategy.gbs,
    }
    if techniques.virtual_stages > 1:
        per_chunk = model.num_layers // (strategy.pp * techniques.virtual_stages)
        flags["num-layers-per-virtual-pipeline-stage"] = per_chunk
    if techniques.sequence_parallel:
        flags["sequence-parallel"] = True
    if techniques.recompute == "selective":
        flags["recompute-granularity"] = "selective"
    elif techniques.recompute == "full":
        flags |= {"recompute-granularity": "full", "recompute-method": "uniform"}
        flags["recompute-num-layers"] = 1
    return flags | _megatron_zero(techniques.zero_stage)


def _megatron_zero(stage: int) -> dict[str, Any]:
    if stage == 0:
        return {}
    flags: dict[str, Any] = {"use-distributed-optimizer": True, "overlap-param-gather": True}
    if stage == 1:
        return flags
    sharded = "optim_grads" if stage == 2 else "optim_grads_params"
    return flags | {
        "use-megatron-fsdp": True,
        "data-parallel-sharding-strategy": sharded,
        "no-gradient-accumulation-fusion": True,
        "ckpt-format": "fsdp_dtensor",
    }


def _deepspeed(strategy: Strategy, model: ModelSpec) -> Emitted:
    techniques = strategy.techniques
    content: dict[str, Any] = {
        "train_batch_size": strategy.gbs,
        "train_micro_batch_size_per_gpu": strategy.mbs,
        "gradient_accumulation_steps": strategy.num_microbatches,
        "zero_optimization": {"stage": techniques.zero_stage},
        "bf16": {"enabled": True},
        "gradient_clipping": model.training.clip_grad,
    }
    if strategy.tp > 1:
        content["tensor_parallel"] = {"autotp_size": strategy.tp}
    return Emitted(text=json.dumps(content, indent=2) + "\n", notes=_deepspeed_notes(strategy))


def _deepspeed_notes(strategy: Strategy) -> tuple[str, ...]:
    techniques = strategy.techniques
    notes = [f"start {strategy.num_gpus} ranks"]
    if strategy.pp > 1:
        notes.append(f"build the model as PipelineModule(..., num_stages={strategy.pp})")
    if techniques.recompute != "none":
        notes.append(f"{techniques.recompute} recomputation is switched on in the model's code")
    if techniques.virtual_stages > 1:
        notes.append(f"DeepSpeed has no interleaving: virtual_stages {techniques.virtual_stages}")
    if techniques.sequence_parallel or techniques.context_parallel > 1:
        notes.append(
            f"sequences are split in the model's code: context_parallel "
            f"{techniques.context_parallel}, sequence_parallel {techniques.sequence_parallel}"
        )
    return tuple(notes)


def _torchtitan(strategy: Strategy, model: ModelSpec) -> Emitted:
    techniques = strategy.techniques
    is_pipeline = strategy.pp > 1
    # Without a pipeline torchtitan accumulates gradients; with one it cuts the local batch.
    local_batch = strategy.mbs * (strategy.num_microbatches if is_pipeline else 1)
    is_sharded = techniques.zero_stage > 0
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if is_sharded else strategy.dp,
        "data_parallel_shard_degree": strategy.dp if is_sharded else 1,
        "fsdp_reshard_after_forward": "always" if techniques.zero_stage == 3 else "never",
        "tensor_parallel_degree": strategy.tp,
        "pipeline_parallel_degree": strategy.pp,
        "context_parallel_degree": techniques.context_parallel,
    }
    if is_pipeline:
        parallelism |= _torchtitan_pipeline(strategy, model)
    sections = {
        "training": {
            "seq_len": model.seq_length,
            "local_batch_size": local_batch,
            "global_batch_size": strategy.gbs,
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": techniques.recompute},
    }
    return Emitted(text=_toml(sections), notes=_torchtitan_notes(strategy))


def _torchtitan_pipeline(strategy: Strategy, model: ModelSpec) -> dict[str, Any]:
    virtual_stages = strategy.techniques.virtual_stages
    return {
        "pipeline_parallel_schedule": "Interleaved1F1B" if virtual_stages > 1 else "1F1B",
        "pipeline_parallel_microbatch_size": strategy.mbs,
        "pipeline_parallel_layers_per_stage": model.num_layers // (strategy.pp * virtual_stages),
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }


def _torchtitan_notes(strategy: Strategy) -> tuple[str, ...]:
    techniques = strategy.techniques
    notes = [f"start {strategy.num_gpus} ranks; [model] names the flavor, which fixes the shape"]
    if techniques.zero_stage == 1:
        notes.append("torchtitan has no ZeRO-1: FSDP without resharding is the nearest (ZeRO-2)")
    if strategy.tp > 1 and not techniques.sequence_parallel:
        notes.append("torchtitan's tensor parallelism is always sequence parallel")
    return tuple(notes)


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    """Write tables of strings and whole numbers; JSON writes those as TOML does."""
    tables = (
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        for name, table in sections.items()
    )
    return "\n\n".join(tables) + "\n"


TRAINERS: dict[str, Callable[[Strategy, ModelSpec], Emitted]] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
}
