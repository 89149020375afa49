"""Rows for the improved model, written out so that no test depends on a shipped calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from cost_cases import GPT, cluster_spec, model_spec
from hypothesis import strategies as st

from cona.cost.constants import Calibration, Constants
from cona.cost.inputs import Inputs, inputs
from cona.cost.predictions import Predictions, predict
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques

CONSTANTS = Constants(
    gemm_efficiency=0.8,
    gemm_edge=300,
    flash_efficiency=0.4,
    attention_bytes=28,
    elementwise_bytes=100,
    unfused_elementwise_bytes=240,
    loss_bytes=30,
    unsplit_loss_bytes=66,
    hbm_efficiency=0.8,
    optimizer_bytes=31,
    intra_rate=1.25,
    inter_rate=0.5,
    overlap=0.6,
    tp_sync_s=5e-5,
    head_layers=0.5,
    launch_s={"debug": 6e-3, "megatron-deepspeed": 3e-3, "tuned": 4e-4},
)
CALIBRATION = Calibration(
    gpu="a100-80g", calibrated=False, source="test", date="2026-11-30", constants=CONSTANTS
)
NODES = cluster_spec(num_nodes=64, gpus_per_node=8)
LLAMA_TIED = model_spec(family="llama", num_heads=32, num_kv_heads=8)


def plan(dp: int, tp: int, pp: int, mbs: int, m: int, **techniques: Any) -> Strategy:
    """A strategy with m micro-batches."""
    used = Techniques(**techniques)
    return Strategy(dp=dp, tp=tp, pp=pp, mbs=mbs, gbs=dp * mbs * m, techniques=used)


def row(
    strategy: Strategy,
    model: ModelSpec = GPT,
    cluster: ClusterSpec = NODES,
    profile: str = "tuned",
    **changes: float,
) -> Inputs:
    """One row, with some of its columns replaced."""
    columns = {name: np.array([value], float) for name, value in changes.items()}
    return replace(inputs(model, cluster, [strategy], profile), **columns)


def seen(x: Inputs, **constants: Any) -> Predictions:
    """Predictions with some of the constants replaced."""
    changed = CONSTANTS.model_copy(update=constants)
    return predict(x, CALIBRATION.model_copy(update={"constants": changed}))


def time_of(x: Inputs, **constants: Any) -> float:
    """T of a single row."""
    return float(seen(x, **constants).time_s[0])


def parts_of(x: Inputs, **constants: Any) -> dict[str, float]:
    """The parts of T of a single row."""
    return {name: float(part[0]) for name, part in seen(x, **constants).parts.items()}


def part_of(x: Inputs, name: str, **constants: Any) -> float:
    """A part of T of a single row."""
    return parts_of(x, **constants)[name]


def memory_of(x: Inputs) -> float:
    """M of a single row."""
    return float(seen(x).memory_bytes[0])


POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def plans(draw: st.DrawFn) -> Strategy:
    """Any strategy that divides GPT-3 1.3B, with any techniques."""
    pp = draw(POWERS)
    chunks = [v for v in (1, 3) if pp > 1 and 24 % (pp * v) == 0] or [1]
    v = draw(st.sampled_from(chunks))
    m = draw(POWERS) * (pp if v > 1 else 1)
    return plan(
        draw(POWERS),
        draw(POWERS),
        pp,
        draw(POWERS),
        m,
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sequence_parallel=draw(st.booleans()),
        virtual_stages=v,
        context_parallel=draw(st.sampled_from([1, 2, 4])),
    )


@st.composite
def rows(draw: st.DrawFn) -> Inputs:
    """Any such strategy, of a GPT or a Llama, under any software stack, fused or not."""
    model = draw(st.sampled_from([GPT, LLAMA_TIED]))
    profile = draw(st.sampled_from(["debug", "megatron-deepspeed", "tuned"]))
    flash, overlap = draw(st.booleans()), draw(st.booleans())
    return row(draw(plans()), model, profile=profile, flash=flash, overlap=overlap)
