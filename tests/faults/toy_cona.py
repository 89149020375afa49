"""The `cona` command on a tiny model that trains in microseconds; its snapshots are real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from problems import tiny_cluster, tiny_model, tiny_tier
from processes import Child, Disk, be_cona, start
from toy_engine import ToyEngine

RUN = Path("tiny") / "tiny"
"""Where runs of the tiny model go, below the results."""


class StoredToy(ToyEngine):
    """The toy engine; its state is stored as a real engine's."""

    def save(self, path: Path) -> None:
        """Write the weights."""
        import torch

        from cona.engine.checkpoint import EngineState, write_state
        from cona.engine.flat import FlatState

        weights, nothing = torch.from_numpy(self.logits.copy()), torch.zeros(0)
        flat = FlatState(weights=weights, moments=(nothing, nothing), num_updates=0)
        write_state(path, "toy", EngineState(flat=flat, rng=nothing))

    def load(self, path: Path) -> None:
        """Read the weights."""
        from cona.engine.checkpoint import read_state

        self.logits = np.array(read_state(path, "toy").flat.weights)


def toy_cona(*arguments: str) -> None:
    """Be the `cona` command with the toy engine."""
    from cona.setup import Setup

    Setup._engine = lambda self: StoredToy()  # type: ignore[method-assign]
    be_cona(*arguments)


def write_config(folder: Path, corpus: str, **tier: Any) -> None:
    """Write the tiny model, its cluster and its tier where CONA_CONFIG_DIR may point."""
    settings = {"cluster": "tiny-cluster", "data": {"corpus": corpus}, **tier}
    specs = {"models": tiny_model(), "clusters": tiny_cluster(), "tiers": tiny_tier(**settings)}
    for kind, spec in specs.items():
        path = folder / kind / f"{spec.name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True)))


def start_toy(
    config: Path, results: Path, policy: str, disk: Disk | None = None, **env: str
) -> Child:
    """Start a run of the tiny model; what it says goes beside the results."""
    words = ("run", "--model", "tiny", "--tier", "tiny", "--policy", policy)
    env = {"CONA_CONFIG_DIR": str(config), **env}
    output = results.with_name(f"{results.name}.txt")
    return start(output, toy_cona, *words, "--out", str(results), env=env, disk=disk)


def files_of(results: Path) -> dict[str, bytes]:
    """Return what must not depend on any fault: the metrics, the result and the trajectory."""
    names = ("metrics.jsonl", "result.json", "steps.jsonl", "evals.jsonl", "segment.json")
    paths = [path for name in names for path in results.rglob(name)]
    return {str(path.relative_to(results)): path.read_bytes() for path in sorted(paths)}
