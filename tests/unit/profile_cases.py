"""A profile small enough for sums by hand: 4 layers, links of 8,000 and 4,000 bytes per second.

At tp = 1 and one sample, forward and backward take 30 ms a layer, 3 ms for the embedding and 15 ms
for the head; tp = 2 halves them, two samples double them. A layer has 100 MB and 1,600 bytes of
weights, each end 50 MB and 800 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from cona.cost.profile import ProfileCosts
from cona.planners import Query

HEADER = "layer,tp,mbs,forward_ms,backward_ms,memory_mb,params_bytes"
NUM_LAYERS = 4
FORWARD_MS = {0: 1.0, NUM_LAYERS + 1: 5.0}
"""Of the ends; a layer's is 10."""


def facts(**changes: object) -> dict:
    """Return the content of profile.yaml; any key can be replaced."""
    shape = {"num_layers": NUM_LAYERS, "hidden_size": 8, "num_heads": 4, "ffn_size": 32}
    return {
        "model": shape | {"vocab_size": 100, "seq_length": 4},
        "gpus_per_node": 2,
        "gpu_memory_gb": 16,
        "intra_node": {"bandwidth_gb_s": 8e-6},
        "inter_node": {"bandwidth_gb_s": 4e-6},
        "optimizer_ms": 12,
        "forward_backward_ms": {"1,1": 140, "1,2": 280, "2,1": 70, "2,2": 140, "1,4": 555},
        "batch_generator_ms": 0.5,
        **changes,
    }


def lines(
    sizes: Sequence[tuple[int, int]],
    *,
    extra_ms: float = 0.0,
    memory_mb: Callable[[int], float] = lambda layer: 100 if 0 < layer <= NUM_LAYERS else 50,
) -> list[str]:
    """Return the lines of layers.csv.

    Args:
        sizes: (tp, mbs) that were measured.
        extra_ms: of every forward pass, whatever its size.
        memory_mb: of a layer at tp = 1, whatever mbs.
    """
    found = [HEADER]
    for tp, mbs in sizes:
        for layer in range(NUM_LAYERS + 2):
            forward = FORWARD_MS.get(layer, 10.0) * mbs / tp
            params = 800 if layer in FORWARD_MS else 1600
            figures = (forward + extra_ms, 2 * forward, memory_mb(layer) / tp, params)
            found.append(",".join(map(str, (layer, tp, mbs, *figures))))
    return found


SIZES = [(tp, mbs) for tp in (1, 2) for mbs in (1, 2)]


def write_profile(folder: Path, csv: Sequence[str] | None = None, **changes: object) -> Path:
    """Write a profile and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in facts(**changes).items() if value is not None}
    (folder / "profile.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    text = "\n".join(lines(SIZES) if csv is None else csv)
    (folder / "layers.csv").write_text(text + "\n", encoding="utf-8")
    return folder


def profile_query(folder: Path, *, num_gpus: int, gbs: int, mbs_max: int = 32) -> Query:
    """Return a query priced by a profile."""
    costs = ProfileCosts(folder, num_gpus)
    return Query(
        model=costs.model,
        num_gpus=num_gpus,
        gpus_per_node=costs.spec.gpus_per_node,
        gbs=gbs,
        mbs_max=mbs_max,
        costs=costs,
        gpu_memory_bytes=costs.spec.gpu_memory_gb * 1e9,
    )
