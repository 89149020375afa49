"""Time, memory and feasibility of many rows at once.

Source: cost-model.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cona.cost.constants import Calibration
from cona.cost.gpus import Floats
from cona.cost.improved_memory import MEMORY_PARTS, memory_parts
from cona.cost.inputs import Inputs
from cona.cost.iteration_time import PARTS, parts_s
from cona.cost.stages import Stages

CHUNK_ROWS = 8192
"""Rows computed together: small enough that intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What the model says about each row; arrays of shape [rows]."""

    time_s: Floats
    """T, seconds per iteration; also where the row is infeasible."""
    parts: dict[str, Floats]
    """Named parts of T in seconds; they sum to T."""
    memory_bytes: Floats
    """M, bytes on the fullest GPU."""
    memory_parts: dict[str, Floats]
    """Named parts of M in bytes; they sum to M."""
    rule: NDArray[np.int8]
    """Index into RULES of the first broken rule; 0: none."""

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Whether each row breaks no rule."""
        return self.rule == 0


RULES = (
    "",
    "num_heads {num_heads:.0f} is not divisible by tp {tp:.0f}",
    "num_kv_heads {num_kv_heads:.0f} is not divisible by tp {tp:.0f}",
    "hidden_size {hidden:.0f} is not divisible by tp {tp:.0f}",
    "ffn_size {ffn:.0f} is not divisible by tp {tp:.0f}",
    "num_layers {num_layers:.0f} is not divisible by pp*virtual_stages = "
    "{pp:.0f}*{virtual_stages:.0f}",
    "gbs {gbs:.0f} is not divisible by dp*mbs = {dp:.0f}*{mbs:.0f}",
    "seq_length {seq:.0f} is not divisible by 2*context_parallel = 2*{cp:.0f}",
    "virtual_stages {virtual_stages:.0f} needs a pipeline; pp is 1",
    "interleaving needs gbs/(dp*mbs) = {gbs:.0f}/({dp:.0f}*{mbs:.0f}) divisible by pp {pp:.0f}",
    "dp*tp*pp*context_parallel = {dp:.0f}*{tp:.0f}*{pp:.0f}*{cp:.0f} exceeds the "
    "{num_gpus:.0f} GPUs of the cluster",
    "it needs {needed_gb:.1f} GB of memory and a GPU has {gpu_gb:g} GB; "
    "a smaller mbs or a larger tp*pp needs less",
)
"""Every rule in words, as a format of the row's columns; the last one is memory."""


def predict(inputs: Inputs, calibration: Calibration) -> Predictions:
    """Return time, memory and feasibility of every row.

    Args:
        inputs: the rows.
        calibration: constants of their GPU type.
    """
    size = inputs.num_rows
    parts = {name: np.empty(size) for name in PARTS}
    memory = {name: np.empty(size) for name in MEMORY_PARTS}
    totals, rule = np.empty((2, size)), np.empty(size, np.int8)
    for start, x in inputs.chunks(CHUNK_ROWS):
        here, stages = slice(start, start + CHUNK_ROWS), Stages.of(x)
        times, sizes = parts_s(x, calibration.constants, stages), memory_parts(x, stages)
        for found, kept in ((times, parts), (sizes, memory)):
            for name, column in kept.items():
                column[here] = found[name]
        totals[:, here] = sum(times.values()), sum(sizes.values())
        rule[here] = broken_rules(x, totals[1, here])
    return Predictions(
        time_s=totals[0], parts=parts, memory_bytes=totals[1], memory_parts=memory, rule=rule
    )


def broken_rules(x: Inputs, memory_bytes: Floats) -> NDArray[np.int8]:
    """Return the index into RULES of the first rule that each row breaks; 0: none."""
    rule = np.zeros(len(memory_bytes), np.int8)
    broken = list(_broken(x, memory_bytes))
    for index, is_broken in reversed(list(enumerate(broken, start=1))):
        rule[np.broadcast_to(is_broken, rule.shape)] = index
    return rule


def _broken(x: Inputs, memory_bytes: Floats) -> Iterator[NDArray[np.bool_]]:
    """Yield whether each rule of RULES is broken, in their order."""
    for size in (x.num_heads, x.num_kv_heads, x.hidden, x.ffn):
        yield ~_divides(x.tp, size)
    yield ~_divides(x.pp * x.virtual_stages, x.num_layers)
    yield (x.num_microbatches != np.rint(x.num_microbatches))
    yield (x.cp > 1) & ~_divides(2 * x.cp, x.seq)
    yield (x.virtual_stages > 1) & (x.pp == 1)
    yield (x.virtual_stages > 1) & ~_divides(x.pp, x.num_microbatches)
    yield x.dp * x.tp * x.pp * x.cp > x.num_gpus
    yield memory_bytes > x.memory_bytes


def _divides(divisor: Floats, number: Floats) -> NDArray[np.bool_]:
    """Whether whole numbers divide; exact in float64, and faster than a remainder."""
    ratio = number / divisor
    return ratio == np.rint(ratio)


def reason(inputs: Inputs, predictions: Predictions, row: int) -> str | None:
    """Return the rule that a row breaks in words, or None."""
    one = inputs.rows(row, row + 1)
    facts = {name: float(getattr(one, name)[0]) for name in one.__dataclass_fields__}
    facts["needed_gb"] = predictions.memory_bytes[row] / 1e9
    facts["gpu_gb"] = facts["memory_bytes"] / 1e9
    return RULES[predictions.rule[row]].format(**facts) or None
