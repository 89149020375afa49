"""Where training stands, and the learning rate of what comes next; a fork is a copy of it.

Source: method.md 2, 5 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cona.gns import GradientNoiseScale
from cona.lr import LearningRate
from cona.segments import Step
from cona.walk import frozen_gns


@dataclass(kw_only=True)
class Course:
    """What is known of training apart from the state of the engine."""

    lr: LearningRate
    """The learning-rate schedule."""
    gns: GradientNoiseScale
    """Smoothed over the iterations so far."""
    iteration: int = 0
    """Iterations done."""
    samples: int = 0
    """Samples consumed: where the data go on."""
    gbs: int | None = None
    """Samples of the last iteration; None before the first."""
    factor: float = 1.0
    """Of the base learning rate, for this batch size."""

    def fork(self) -> Course:
        """Return a copy that can go another way."""
        return replace(self, gns=self.gns.copy())

    def turn_to(self, gbs: int) -> None:
        """Get ready for an iteration of ``gbs`` samples.

        Rules of the learning rate that use the GNS use the value frozen at a change of batch size.
        """
        if gbs != self.gbs:
            self.factor = self.lr.factor(gbs, frozen_gns(self.gns))
        self.gbs = gbs

    def next_lr(self, gbs: int) -> float:
        """Return the learning rate of the next iteration, of ``gbs`` samples."""
        return self.lr.at((self.samples + gbs) * self.lr.seq_length, self.factor)

    def add(self, step: Step, gbs: int) -> None:
        """Go past an iteration of ``gbs`` samples."""
        self.iteration, self.samples = step.iteration, step.samples
        self.gns.update(step.terms, gbs)
