"""Bytes and FLOPs of an iteration, and of the noise scale's statistics, counted from shapes.

The iteration's are those of the cost model's operations (Calculon's, unfused attention), on a GPU
of the last pipeline stage, which holds the LM head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cona.config import load
from cona.cost.gpus import gpu
from cona.cost.head import CalculonWithHead
from cona.cost.improved import Improved
from cona.cost.layer import ELEMENT_BYTES, Layer
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy, Techniques

MODEL, CLUSTER = "gpt3-1.3b", "a100x4-2node"
PAPER = Techniques(zero_stage=1, recompute="full")
LAYOUTS = ("dp4-tp1-pp1", "dp2-tp2-pp1", "dp1-tp2-pp2", "dp2-tp1-pp2", "dp1-tp1-pp4")
MICRO_BATCHES = (1, 4, 16)
STRATEGIES = (
    "dp4-tp1-pp1-mbs2-gbs8",  # the fastest at gbs 8; at gbs 64 it is dp4 with mbs 16
    *(f"{layout}-mbs{mbs}-gbs64" for layout in LAYOUTS for mbs in MICRO_BATCHES),
)
FP32_BYTES = 4
ADAM_BYTES, ADAM_FLOPS = 28, 11
"""Adam with fp32 state per parameter: reads gradient, weight and moments, writes the last three;
FLOPs as Calculon counts them. ZeRO-1 shards it."""


class Counter:
    """Stands in for a GPU of the cost model: the 'seconds' of an operation are its amount."""

    def __init__(self, what: str) -> None:
        self.what = what

    def gemm_s(self, flops: Any, num_bytes: Any) -> Any:
        """Return FLOPs or bytes of a matrix product."""
        return flops if self.what == "flops" else num_bytes

    vector_s = gemm_s


@dataclass(frozen=True)
class Amount:
    """Work on one GPU."""

    num_bytes: float
    """Moved to and from its memory, or over the network."""
    flops: float
    """Floating-point operations."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.num_bytes + other.num_bytes, self.flops + other.flops)

    def times(self, count: float) -> Amount:
        """Return the work of several."""
        return Amount(count * self.num_bytes, count * self.flops)


class Iteration:
    """One iteration of a strategy on a GPU of its last stage."""

    def __init__(self, model: ModelSpec, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        self.num_layers = model.num_layers / strategy.pp
        table = model.padded_vocab_size * model.hidden_size / strategy.tp
        self.num_parameters = self.num_layers * float(self._layer("flops").num_weights[0]) + table

    def _layer(self, what: str) -> Layer:
        mbs, tp = (np.array([float(n)]) for n in (self.strategy.mbs, self.strategy.tp))
        return Layer(model=self.model, gpu=Counter(what), mbs=mbs, tp=tp)  # type: ignore[arg-type]

    def _micro_batch(self, what: str) -> float:
        layer = self._layer(what)
        head = CalculonWithHead(self.model, load(ClusterSpec, CLUSTER))
        head.gpu = Counter(what)
        both = layer.forward_s + layer.backward_s + layer.recompute_s(PAPER.recompute)
        ends = head.head_forward_s(layer) + head.head_backward_s(layer)
        return float((self.num_layers * both + ends)[0])

    @property
    def work(self) -> Amount:
        """All of the iteration, without its statistics."""
        accumulate = Amount((ELEMENT_BYTES + 2 * FP32_BYTES) * self.num_parameters, 0)
        one = Amount(self._micro_batch("bytes"), self._micro_batch("flops")) + accumulate
        update = Amount(ADAM_BYTES, ADAM_FLOPS).times(self.num_parameters / self.strategy.dp)
        norm = Amount(FP32_BYTES, 2).times(self.num_parameters)
        return one.times(self.strategy.num_microbatches) + update + norm

    @property
    def ours(self) -> Amount:
        """Each micro-batch's gradient is read once more; rows of a tied embedding travel."""
        read = Amount(ELEMENT_BYTES, 2).times(self.num_parameters)
        scalars = Amount(3 * 8, 3)
        return (read + self._tied_rows).times(self.strategy.num_microbatches) + scalars

    @property
    def _tied_rows(self) -> Amount:
        """Rows of the looked-up tokens, at most all different: gathered, sent, and multiplied."""
        if self.strategy.pp == 1 or not self.model.tied_embeddings:
            return Amount(0, 0)
        tokens = self.strategy.mbs * self.model.seq_length
        rows = min(tokens, self.model.padded_vocab_size / self.strategy.tp)
        return Amount(4 * ELEMENT_BYTES, 2).times(rows * self.model.hidden_size)

    @property
    def peer(self) -> Amount:
        """The summed gradient is read once more, or compared with the last one, and kept."""
        per_parameter = (FP32_BYTES, 2) if self.strategy.dp > 1 else (3 * FP32_BYTES, 3)
        return Amount(*per_parameter).times(self.num_parameters) + Amount(8, 1)


def full_size_rows() -> list[list[Any]]:
    """Return a row per strategy.

    Percent of the iteration's bytes (ours, the peer's), of its FLOPs (ours), and of its predicted
    time if the extra bytes move at the memory's bandwidth (ours, the peer's).
    """
    model, cluster = load(ModelSpec, MODEL), load(ClusterSpec, CLUSTER)
    prices = Improved(model, cluster)
    efficiency = prices.calibration.constants.hbm_efficiency
    bytes_per_s = gpu(cluster.gpu).sheet.hbm_gb_s * 1e9 * efficiency
    rows: list[list[Any]] = []
    for strategy in (replace(Strategy.parse(text), techniques=PAPER) for text in STRATEGIES):
        iteration = Iteration(model, strategy)
        work, both = iteration.work, (iteration.ours, iteration.peer)
        time_s = float(prices.predict([strategy]).time_s[0])
        rows.append(
            [
                str(strategy),
                *(100 * extra.num_bytes / work.num_bytes for extra in both),
                100 * iteration.ours.flops / work.flops,
                *(100 * extra.num_bytes / bytes_per_s / time_s for extra in both),
            ]
        )
    return rows
