"""Which engine a run on real ranks gets, and what that engine can do; imports no engine itself."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cona.errors import ConfigError
from cona.specs import EngineKind, EngineSpec, ModelSpec
from cona.strategy import Layout, Techniques

if TYPE_CHECKING:
    from cona.engine.base import LiveEngine

_FREE = {"megatron": ("recompute", "sequence_parallel"), "deepspeed": ("recompute", "zero_stage")}
"""Techniques that an engine carries out as asked; it has none of the others."""

_SWITCH_PATHS = {"megatron": ("live",), "deepspeed": ("live", "universal")}
"""Ways to another layout that an engine has."""


def lacking(engine: EngineSpec, techniques: Techniques) -> dict[str, Any]:
    """Return the techniques that the engine lacks, each with the value that it can do instead.

    The megatron engine keeps whole Adam moments on every data-parallel rank (ZeRO stage 0); the
    deepspeed engine's optimizer is ZeRO's.
    """
    neutral, free = Techniques(), _FREE[engine.kind]
    found = {
        field.name: getattr(neutral, field.name)
        for field in fields(Techniques)
        if field.name not in free
        and getattr(techniques, field.name) != getattr(neutral, field.name)
    }
    if engine.kind == "deepspeed" and techniques.zero_stage == 0:
        found["zero_stage"] = 1
    return found


def brought(kind: EngineKind, engine: EngineSpec, techniques: Techniques) -> dict[str, Any]:
    """Return the settings under which a policy's own engine runs, by dotted key.

    DeepSpeed switches as the paper does, through its universal checkpoint.

    Args:
        kind: the policy's engine.
        engine: the tier's, for its precision.
        techniques: the tier's; the ZeRO stage follows the engine where that lacks it.
    """
    path = _SWITCH_PATHS[kind][-1]
    own = engine.model_copy(update={"kind": kind, "switch_path": path})
    zero_stage = lacking(own, techniques).get("zero_stage", techniques.zero_stage)
    changes = {"engine.kind": kind, "engine.switch_path": path}
    return {**changes, "techniques.zero_stage": zero_stage}


def has_pipelines(engine: EngineSpec) -> bool:
    """Return whether the engine can split the layers into stages."""
    return engine.kind != "deepspeed"


def check(engine: EngineSpec, techniques: Techniques) -> None:
    """Refuse what no engine can carry out.

    Raises:
        ConfigError: the engine lacks a technique, a precision or a switch path.
    """
    if engine.switch_path not in _SWITCH_PATHS[engine.kind]:
        valid = ", ".join(_SWITCH_PATHS[engine.kind])
        raise ConfigError(
            f"engine.switch_path {engine.switch_path}: the {engine.kind} engine has no such way to "
            f"another layout; valid: {valid}"
        )
    for name, value in lacking(engine, techniques).items():
        raise ConfigError(
            f"techniques.{name} = {getattr(techniques, name)}: the {engine.kind} engine has no "
            f"such thing, and a measured run must run what it says; nearest: {value}"
        )
    if engine.kind == "deepspeed" and engine.precision == "fp16":
        raise ConfigError(
            "engine.precision fp16: the scale of DeepSpeed's loss does not survive a switch, so "
            "the deepspeed engine computes in fp32 or bf16; nearest: bf16"
        )
    if engine.switch_path == "universal" and techniques.zero_stage == 3:
        raise ConfigError(
            "techniques.zero_stage = 3: no universal switch can go from tp 1 to more, because "
            "DeepSpeed does not keep the shapes; nearest: 2, or engine.switch_path live"
        )


def build_live_engine(
    model: ModelSpec, layout: Layout, *, seed: int, engine: EngineSpec, techniques: Techniques
) -> LiveEngine:
    """Build an engine on this rank; every rank of the world calls this alike.

    Args:
        model: the model.
        layout: the first layout; dp*tp*pp is the number of ranks.
        seed: of the initial weights and of dropout.
        engine: which engine, and its precision.
        techniques: what it carries out beside the layout.

    Raises:
        ConfigError: the layout fits the ranks or the model not, or the hardware lacks something.
    """
    check(engine, techniques)
    from cona.engine.stage import Numerics

    refuse_without_gpu(engine, techniques)
    numerics = Numerics(
        precision=engine.precision,
        recompute=techniques.recompute,
        sequence_parallel=techniques.sequence_parallel,
    )
    if engine.kind == "deepspeed":
        from cona.engine.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(
            model,
            layout,
            seed,
            zero_stage=techniques.zero_stage,
            numerics=numerics,
            switch_path=engine.switch_path,
        )
    from cona.engine.parallel import ParallelEngine

    return ParallelEngine(model, layout, seed, numerics)


def refuse_without_gpu(engine: EngineSpec, techniques: Techniques) -> None:
    """Refuse what takes a GPU on a machine without one.

    Raises:
        ConfigError: fp16 or sequence parallelism on a CPU.
    """
    import torch

    if torch.cuda.is_available():
        return
    if engine.precision == "fp16":
        raise ConfigError("engine.precision fp16 needs a GPU, and there is none; nearest: fp32")
    if techniques.sequence_parallel:
        raise ConfigError(
            "techniques.sequence_parallel = True needs a GPU, and there is none; nearest: False"
        )
