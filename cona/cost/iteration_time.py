"""T(s) of the improved model: layers, pipeline, reductions and optimizer put together.

Source: cost-model.md, gaps 1, 5 and 6
"""

from __future__ import annotations

import numpy as np

from cona.cost.collectives import Network
from cona.cost.constants import Constants
from cona.cost.gpus import Floats
from cona.cost.inputs import Inputs
from cona.cost.layer_time import ELEMENT_BYTES, FORWARD, LayerTime, head_s, layer_time
from cona.cost.stages import Stages

PARTS = (
    "compute",
    "recompute",
    "tp_comm",
    "cp_comm",
    "pp_p2p",
    "bubble",
    "dp_comm",
    "optimizer",
    "head",
    "launch",
)
"""Names of the parts of T, in the order of an iteration."""


def parts_s(x: Inputs, c: Constants, stages: Stages) -> dict[str, Floats]:
    """Return the named parts of T in seconds, each of shape [rows]; they sum to T.

    One-forward-one-backward: m micro-batches pass the slowest stage, which is the last one as it
    pays the LM head m times; the others add one micro-batch each while the pipeline fills and
    drains.
    """
    network, layer = Network.of(x, c), layer_time(x, c)
    tensor, context = tensor_parallel_s(x, c, network), context_parallel_s(x, network)
    layer_s = layer.compute_s + layer.recompute_s + layer.launch_s + tensor + context
    slots = x.num_microbatches * stages.num_layers
    p2p = p2p_s(x, network)
    stage_s = stages.num_layers * layer_s
    window_s = stage_s * np.where(x.zero_stage > 2, x.num_microbatches, 1 - FORWARD)
    return {
        **_in_slots(slots, layer),
        "tp_comm": slots * tensor,
        "cp_comm": slots * context,
        "pp_p2p": 2 * x.num_microbatches * x.virtual_stages * p2p,
        "bubble": (x.pp - 1) * (stage_s / x.virtual_stages + 2 * p2p),
        "dp_comm": data_parallel_s(x, c, network, stages, window_s),
        "optimizer": optimizer_s(x, c, stages),
        "head": x.num_microbatches * head_s(x, c),
    }


def _in_slots(slots: Floats, layer: LayerTime) -> dict[str, Floats]:
    return {
        "compute": slots * layer.compute_s,
        "recompute": slots * layer.recompute_s,
        "launch": slots * layer.launch_s,
    }


def _residual_bytes(x: Inputs) -> Floats:
    """Bytes of the residual stream of a micro-batch on one GPU, which tp does not divide."""
    return x.tokens * x.hidden * ELEMENT_BYTES


def tensor_parallel_s(x: Inputs, c: Constants, network: Network) -> Floats:
    """Return the seconds of a layer's tensor-parallel collectives per micro-batch.

    Two all-reduces forward, two backward, two more where the forward pass is computed again;
    sequence parallelism replaces each by a reduce-scatter and an all-gather of the same bytes.
    """
    half_s = network.gather_s(_residual_bytes(x), x.tp, np.ones(1))
    all_reduce_s = 2 * half_s + c.tp_sync_s * (x.tp > 1)
    return (4 + 2 * x.recompute_rest) * all_reduce_s


def context_parallel_s(x: Inputs, network: Network) -> Floats:
    """Return the seconds of a layer's exchange of keys and values per micro-batch.

    Forward gathers them, backward gathers them again and scatters their gradients.
    """
    kv = 2 * x.num_kv_heads * x.hidden / x.num_heads / x.tp
    num_bytes = x.mbs * x.seq * kv * ELEMENT_BYTES
    return (3 + x.recompute_attention) * network.gather_s(num_bytes, x.cp, x.tp * x.pp)


def p2p_s(x: Inputs, network: Network) -> Floats:
    """Return the seconds of one message between stages; 0 without a pipeline.

    Every tensor-parallel rank sends its share (Megatron's scatter-gather, or sequence
    parallelism); gathering them inside the node is cheap.
    """
    message_s = network.p2p_s(_residual_bytes(x) / x.tp, x.tp * x.pp)
    return message_s * x.is_pipelined


def data_parallel_s(
    x: Inputs, c: Constants, network: Network, stages: Stages, window_s: Floats
) -> Floats:
    """Return the seconds of gradient and weight collectives that computation does not hide.

    Once per iteration: a reduce-scatter and an all-gather (together an all-reduce, or ZeRO-1).
    ZeRO-2 scatters gradients after every micro-batch; ZeRO-3 also gathers weights before every
    forward and backward pass. Both work layer by layer. A tied embedding that stands on two
    stages is reduced between them.

    Args:
        x: the rows.
        c: the constants.
        network: links.
        stages: parameters.
        window_s: seconds of computation beside which an overlapped reduction may run.
    """
    is_layered = x.zero_stage > 1
    pieces = np.where(is_layered, stages.num_layers + 1, 1.0)
    num_bytes = stages.largest * ELEMENT_BYTES / pieces
    piece_s = network.gather_s(num_bytes, x.dp * x.cp, x.tp * x.pp)
    sharded = np.where(x.zero_stage > 2, 3 * x.num_microbatches, 1 + x.num_microbatches)
    times = np.where(is_layered, sharded, 2.0)
    all_s = pieces * times * piece_s
    hidden_s = x.overlap * np.minimum(c.overlap * all_s, window_s)
    tied_bytes = stages.table_params * ELEMENT_BYTES
    tied_s = 2 * network.p2p_s(tied_bytes, x.tp * x.pp)
    return all_s - hidden_s + tied_s * (x.is_tied * x.is_pipelined)


def optimizer_s(x: Inputs, c: Constants, stages: Stages) -> Floats:
    """Return the seconds of Adam's step on the largest stage, sharded over dp from ZeRO-1 on."""
    shards = np.where(x.zero_stage > 0, x.dp * x.cp, 1.0)
    hbm = x.hbm_bytes_per_s * c.hbm_efficiency
    return stages.largest * c.optimizer_bytes / (hbm * shards)
