"""The words in files of iteration times: precision, recompute, ways of data parallelism, GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cona.cost.gpu_names import gpu_key
from cona.errors import ConfigError, nearest

_DENIALS = frozenset(("no", "not", "non", "without", "never", "off", "disabled", "false"))
"""Words that turn the two words after them into their opposite."""


_DENIED_BEFORE = frozenset(("off", "disabled", "false"))
"""Words that do so with the two words before them: ``flash attention off``."""


def says(text: str, word: str) -> bool:
    """Return whether a text has a whole word that it does not deny: ``no flash`` is no flash.

    Args:
        text: of any case; '-', '_' and other signs part words, and ';' ',' '.' parts of the text.
        word: a regular expression for the word, in lower case.
    """
    return any(not denied for denied in _occurrences(text, word))


def denies(text: str, word: str) -> bool:
    """Return whether a text has a whole word only to deny it; arguments as for ``says``."""
    found = list(_occurrences(text, word))
    return bool(found) and all(found)


def _occurrences(text: str, word: str) -> Iterator[bool]:
    """Yield for each occurrence of a word whether it is denied."""
    for part in re.split(r"[;,.()]", text.lower()):
        words = re.findall(r"[a-z0-9]+", part)
        for i, found in enumerate(words):
            if re.fullmatch(word, found):
                before = _DENIALS & set(words[max(0, i - 2) : i])
                after = _DENIED_BEFORE & set(words[i + 1 : i + 3])
                yield bool(before or after)


def gpu_type(word: str) -> str:
    """Return the cost model's GPU type, or the word itself where it knows none of that model."""
    name = re.split(r"_\d+gpu|:", word)[0]  # Calculon's systems add the node: a100_80g_2gpu_node
    try:
        return gpu_key(name)
    except ConfigError:
        return name


def gpus_in_node(word: str) -> float | None:
    """Return the node size that one of Calculon's systems states: a100_80g_2gpu_node is 2."""
    match = re.search(r"(\d+)gpu", word)
    return float(match.group(1)) if match else None


def is_sequence_parallel(word: str) -> bool:
    """Return whether a way of recomputing is written with ``+sp``."""
    return "sp" in word.split("+")[1:]


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
    if match := re.match(r"zero[-_]?([0-3])(?![a-z\d])", word):
        return int(match.group(1))
    if re.match(r"[fh]sdp\d?(?![a-z\d])", word):
        return 2 if "grad_op" in word else 3
    if word.split("_")[0] in ("ddp", "dp", "none"):
        return 0
    raise ConfigError(f"unknown way '{word}': {nearest(word, ('ddp', 'zero1', 'zero2', 'fsdp'))}")
