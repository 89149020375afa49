"""DeepSpeed's universal checkpoint: the stock way to another layout, through the disk.

The converter joins the ranks' files into whole tensors and must be told how tensor parallelism cut
each of them; the loader cuts them again. Source: the paper's release switches this way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cona.engine.shards import Shard, shards
from cona.engine.unpickling import plain_loads_of_deepspeed
from cona.errors import ConfigError, RunError
from cona.specs import LadderSpec, ModelSpec
from cona.strategy import Layout, StrategySpace, divisors

VERSION = 0.4
"""Of the descriptions below: that of DeepSpeed 0.19."""

PREFIX = "model."
"""What DeepSpeed's names of parameters have before megatron's."""


def name_of(tag: str) -> str:
    """Return the universal checkpoint's name in the folder of the checkpoint ``tag``."""
    return f"{tag}_universal"


def describe(
    module: nn.Module, spec: ModelSpec, parameters: Mapping[Shard, nn.Parameter], tp: int
) -> None:
    """Tell DeepSpeed how each parameter of a module is cut, for its converter and its loader.

    Args:
        module: in whose checkpoints the description is stored.
        spec: the model.
        parameters: the rank's, by shard.
        tp: tensor-parallel degree.
    """
    cuts = _cut_dims(spec)
    rows, stacks, copies = [], [], []
    for shard in parameters:
        pattern = f"^{re.escape(PREFIX + shard.local_name)}$"
        dim = cuts[shard.name]
        if dim is None:
            copies.append(pattern)
        elif _is_stack(shard):
            stacks.append(pattern)
        elif dim == 1:
            rows.append(pattern)
    module.universal_checkpoint_info = {  # type: ignore[assignment]
        "universal_checkpoint_version": VERSION,
        "tp_replicated_parameter_patterns": copies,
        "parameter_with_row_parallelism_patterns": rows,
        "parameter_with_2_sub_params_cat_dim_0": stacks,
    }
    if tp > 1:
        for shard, parameter in parameters.items():
            cut = _cut(shard, cuts[shard.name], tp)
            parameter.ds_autotp_universal_checkpoint_meta = cut  # type: ignore[attr-defined]


def _cut_dims(spec: ModelSpec) -> dict[str, int | None]:
    """Return along which dimension tensor parallelism cuts each tensor, at any degree."""
    one = Layout(dp=1, tp=1, pp=1)
    cut = next(
        (Layout(dp=1, tp=t, pp=1) for t in divisors(spec.num_kv_heads) if _fits(spec, t)), one
    )
    return {shard.name: _cut_dim(shard) for shard in shards(spec, cut, 0)}


def _fits(spec: ModelSpec, tp: int) -> bool:
    space = StrategySpace(model=spec, num_gpus=tp, ladder=LadderSpec())
    return tp > 1 and space.why_not_layout(Layout(dp=1, tp=tp, pp=1)) is None


def _cut_dim(shard: Shard) -> int | None:
    sizes = enumerate(zip(shard.shape, shard.global_shape, strict=True))
    return next((dim for dim, (part, whole) in sizes if part != whole), None)


def _is_stack(shard: Shard) -> bool:
    """Llama's gate on top of its up projection: one matrix, each half cut for itself."""
    return len(shard.global_shape) == 3


def _cut(shard: Shard, dim: int | None, tp: int) -> dict[str, Any]:
    """Describe a cut tensor to the loader of stage 3 (the others read the converter's marks)."""
    if dim is None:
        return {"replicated": True, "partition_dim": None}
    if not _is_stack(shard):
        return {"partition_dim": dim, "logical_shape": shard.global_shape}
    halves, ffn, hidden = shard.global_shape
    return {
        "universal_checkpoint_version": VERSION,
        "partition_dim": 0,
        "logical_shape": (halves * ffn, hidden),
        "sub_param_sizes": (ffn,) * halves,
        "sub_param_shard_widths": [[ffn // tp] * tp] * halves,
    }


def set_tensor_parallel_group(group: Any) -> None:
    """Tell DeepSpeed's loader of stage 3 the group, which it does not take from the ``mpu``."""
    from deepspeed.utils import groups

    groups._TENSOR_MODEL_PARALLEL_GROUP = group


def check_universal(zero_stage: int, old: Layout, new: Layout) -> None:
    """Raise ConfigError where a universal checkpoint would be read wrongly.

    Without tensor parallelism the converter of stage 3 writes tensors without their shapes, which
    the loader cannot cut.
    """
    if zero_stage == 3 and old.tp == 1 and new.tp > 1:
        raise ConfigError(
            f"a universal switch from {old} to {new} under ZeRO stage 3 would cut tensors whose "
            f"shapes DeepSpeed does not keep; nearest: zero_stage 2, or switch_path live"
        )


def convert(folder: Path, tag: str) -> RunError | None:
    """Run DeepSpeed's converter on the checkpoint ``tag``; the result lies next to it.

    Returns:
        What went wrong, for all ranks to raise.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cona.engine.universal"),
            *("--input_folder", str(folder / tag)),
            *("--output_folder", str(folder / name_of(tag))),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if not done.returncode:
        return None
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return RunError(f"DeepSpeed could not convert {folder / tag}: {reason}")


def _convert() -> None:
    """Be DeepSpeed's converter, with its arguments, and read nothing that could run code."""
    from deepspeed.checkpoint.ds_to_universal import main, parse_arguments

    with plain_loads_of_deepspeed():
        main(parse_arguments())


if __name__ == "__main__":
    _convert()
