"""A run's way through training, as the runner sees it: on the virtual cluster or on real ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cona.gns import GradientNoiseScale
from cona.runlog import Record
from cona.segments import Evaluation, Step
from cona.strategy import Strategy

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, kw_only=True)
class Timed(Generic[RecordT]):
    """What happened, and how long that took."""

    record: RecordT
    seconds: float | None = None
    """Wall seconds; None on the virtual cluster, where nobody measures."""
    is_warmup: bool = False
    """The seconds hold what a start or a switch leaves behind."""


class Walk(Protocol):
    """A way through training; what is recorded is read, what is missing is executed."""

    gns: GradientNoiseScale
    """Smoothed over the iterations so far."""
    segments: list[str]
    """Hashes of the trajectory's segments; empty on real ranks, which share none."""
    num_read: int
    """Iterations that were found recorded."""

    @property
    def num_trained(self) -> int:
        """Iterations that were executed here, those of forks included."""

    @property
    def probe_s(self) -> float | None:
        """Seconds of looking ahead; None on the virtual cluster, where runs share forks."""

    @property
    def checkpoint_s(self) -> float | None:
        """Seconds of writing checkpoints; None on the virtual cluster, where runs share them."""

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""

    def begin(self, strategy: Strategy) -> Record | None:
        """Get ready for the first iteration; return what a crash makes us repeat, if anything."""

    def iterate(self, strategy: Strategy) -> Timed[Step]:
        """Go one iteration ahead."""

    def validate(self) -> Timed[Evaluation]:
        """Evaluate the model here on the TTP set."""

    def switch(self, old: Strategy, new: Strategy) -> float | None:
        """Go over to another strategy; return the seconds of a change of layout, if measured."""

    def keep(self) -> None:
        """Write the training state to disk, so that nothing is trained twice."""

    def on_step(self, call: Callable[[], None]) -> None:
        """Call something before every iteration that is executed."""


def frozen_gns(gns: GradientNoiseScale) -> float | None:
    """Return the noise scale that learning-rate rules use until the next change of batch size.

    Infinity while mu_sq is not positive; None without any term yet. Source: method.md 5.
    """
    estimate = gns.estimate()
    return math.inf if estimate.gns is None and estimate.num_terms else estimate.gns
