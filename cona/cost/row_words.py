"""The words in files of iteration times: precision, recompute, ways of data parallelism, GPUs."""

from __future__ import annotations

import re

from cona.cost.gpu_names import gpu_key
from cona.errors import ConfigError, nearest


def gpu_type(word: str) -> str:
    """Return the cost model's GPU type, or the word itself where it knows none of that model."""
    name = re.split(r"_\d+gpu|:", word)[0]  # Calculon's systems add the node: a100_80g_2gpu_node
    try:
        return gpu_key(name)
    except ConfigError:
        return name


def precision(word: str) -> str:
    """Return fp16, bf16 or fp8. Raises ConfigError."""
    valid = ("fp16", "bf16", "fp8")
    known = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16"} | {v: v for v in valid}
    if word.lower() not in known:
        raise ConfigError(f"unknown precision '{word}': {nearest(word, valid)}")
    return known[word.lower()]


def recompute(word: str) -> str:
    """Return which activations are recomputed: none, selective or full. Raises ConfigError.

    ASSUMED: torchtitan's ``selective_layer`` (every second layer) counts as selective.
    """
    base = re.split(r"[+_]", word)[0]
    known = {"flash": "none", "none": "none", "selective": "selective", "full": "full"}
    if base not in known:
        raise ConfigError(f"unknown recompute '{word}': {nearest(base, known)}")
    return known[base]


def zero_stage(word: str) -> int:
    """Return the ZeRO stage that a way of data parallelism equals. Raises ConfigError."""
    if match := re.match(r"zero-?([0-3])", word):
        return int(match.group(1))
    if word.startswith(("fsdp", "hsdp")):
        return 2 if "grad_op" in word else 3
    if word.split("_")[0] in ("ddp", "dp", "none"):
        return 0
    raise ConfigError(f"unknown way '{word}': {nearest(word, ('ddp', 'zero1', 'zero2', 'fsdp'))}")
