"""The toy engine with layouts, and ranks in name only: the measured clock in one process.

Its seconds are made up from the layout, so that tests can say what a clock must show.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

from toy_engine import ToyEngine

from cona.engine.base import Batch, StepStats, Switched
from cona.errors import DamageError
from cona.specs import EngineSpec
from cona.strategy import Layout, Techniques

WARM_S = 1.0
"""What the first iteration after a start or a switch takes longer."""
SWITCH_S = 0.5


def iteration_s(layout: Layout, gbs: int) -> float:
    """Return T of the toy: pipeline stages are slow, larger batches cost little."""
    return 0.1 * layout.pp + 0.001 * gbs


class ToyLiveEngine(ToyEngine):
    """Implements ``cona.engine.base.LiveEngine``."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self._is_cold = True

    def train_step(self, batch: Batch, *, exec_mbs: int, lr: float) -> StepStats:
        """Take one gradient step and make up how long it took."""
        seconds = iteration_s(self.layout, len(batch)) + WARM_S * self._is_cold
        self._is_cold = False
        # The noise scale must not depend on the layout: at least two micro-batches.
        stats = super().train_step(batch, exec_mbs=min(exec_mbs, len(batch) // 2), lr=lr)
        return replace(stats, seconds=seconds)

    def switch(self, layout: Layout) -> Switched:
        """Go over to another layout."""
        self.layout, self._is_cold = layout, True
        return Switched(seconds=SWITCH_S, moved_bytes=8, needed_bytes=8)

    def snapshot(self) -> Any:
        """Return a copy of the weights, and their layout."""
        return self.layout, super().snapshot()

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy, in its layout."""
        layout, logits = snapshot
        self._is_cold = self._is_cold or layout != self.layout
        self.layout = layout
        super().restore(logits)

    def save(self, path: Path) -> None:
        """Write the weights into a folder."""
        path.mkdir()
        (path / "state").write_bytes(pickle.dumps(self.logits))

    def load(self, path: Path) -> None:
        """Read the weights."""
        try:
            self.logits = pickle.loads((path / "state").read_bytes())
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamageError(f"{path}: damaged") from error


class OneProcess:
    """Stands for ``cona.engine.ranks.Leader``."""

    def __init__(self, num_ranks: int = 4) -> None:
        self.hardware = {"device": "toy", "num_ranks": num_ranks, "backend": "none"}
        self.built: list[tuple[EngineSpec, Techniques]] = []

    def build(self, model: Any, layout: Layout, **options: Any) -> ToyLiveEngine:
        """Return a new engine, and note which one was asked for."""
        self.built.append((options["engine"], options["techniques"]))
        return ToyLiveEngine(layout)
