"""A walk through the trajectory tree: recorded iterations are read, missing ones are trained.

The engine is built only when something must really be trained. Source: architecture.md, Contracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cona.gns import GradientNoiseScale
from cona.lr import LearningRate
from cona.policy import Fork
from cona.runlog import Record
from cona.segments import Evaluation, Position, Segment, Step
from cona.specs import TierSpec
from cona.strategy import Strategy
from cona.trainer import Trainer
from cona.walk import Timed, frozen_gns


class Trajectory:
    """A walk through the tree from its root: recorded iterations are read, missing ones trained.

    Args:
        root: the root segment.
        trainer: executes what is not recorded.
        lr: the learning-rate schedule.
        tier: smoothing of the GNS and snapshot interval.

    Attributes:
        num_trained, num_read: iterations that this walk executed, and that it found recorded.
    """

    def __init__(self, root: Segment, trainer: Trainer, lr: LearningRate, tier: TierSpec) -> None:
        self.position = Position(root, 0, 0)
        self.gns = GradientNoiseScale(tier.gns.decay_per_sample)
        self.segments = [root.id]
        self.num_trained = self.num_read = 0
        self._trainer, self._lr, self._tier = trainer, lr, tier
        self._factor = 1.0

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._trainer.num_evaluation_bytes

    @property
    def checkpoint_s(self) -> None:
        """Nothing: snapshots belong to the tree, not to a run."""
        return None

    @property
    def probe_s(self) -> None:
        """Nothing: forks belong to the tree as well."""
        return None

    def begin(self, strategy: Strategy) -> Record | None:
        """Do nothing: what is recorded is read when it is asked for."""
        return None

    def iterate(self, strategy: Strategy) -> Timed[Step]:
        """Go one iteration of a strategy ahead; training depends on its batch size only."""
        return Timed(record=self.step(strategy.gbs))

    def validate(self) -> Timed[Evaluation]:
        """Evaluate the model here on the TTP set."""
        return Timed(record=self.evaluate("valid"))

    def switch(self, old: Strategy, new: Strategy) -> float | None:
        """Do nothing: a virtual cluster has no layout."""
        return None

    def step(self, gbs: int) -> Step:
        """Go one iteration of ``gbs`` samples ahead and return its record."""
        behind, ahead = self.position, self.position.ahead(gbs)
        if ahead.segment is not behind.segment:
            # Rules that use the GNS use the value frozen here (method.md 5).
            self._factor = self._lr.factor(gbs, frozen_gns(self.gns))
            self.segments.append(ahead.segment.id)
        step = ahead.segment.step(ahead.iteration)
        if step is None:
            step = self._train(behind, ahead, gbs)
            self.num_trained += 1
        else:
            self.num_read += 1
        self.position = ahead
        self.gns.update(step.terms, gbs)
        return step

    def _train(self, behind: Position, ahead: Position, gbs: int) -> Step:
        seq_length = self._lr.seq_length
        lr = self._lr.at(ahead.samples * seq_length, self._factor)
        step = self._trainer.train(behind, gbs, lr)
        ahead.segment.add_step(step)
        interval = self._tier.snapshot_interval_samples
        if behind.samples // interval != ahead.samples // interval:
            self._trainer.keep()
        return step

    def evaluate(self, split: str = "valid") -> Evaluation:
        """Return the evaluation of the model here on a fixed set, measured at most once."""
        segment, iteration = self.position.segment, self.position.iteration
        known = segment.evaluation(iteration, split)
        if known is None:
            known = self._trainer.evaluate(self.position, split)
            segment.add_evaluation(known)
        return known

    def probe(self, fork: Fork) -> float:
        """Return the log perplexity on the probe set after (strategy, iterations) stages from here.

        This walk does not move. Infinity means that the model diverged. Source: method.md 9.
        """
        twin = self._twin()
        for strategy, num_iterations in fork:
            for _ in range(num_iterations):
                twin.step(strategy.gbs)
        self.num_trained += twin.num_trained
        self.num_read += twin.num_read
        evaluation = twin.evaluate("probe")
        return math.inf if evaluation.nats is None else evaluation.nats / evaluation.num_tokens

    def _twin(self) -> Trajectory:
        twin = Trajectory(self.position.segment, self._trainer, self._lr, self._tier)
        twin.position, twin.gns, twin._factor = self.position, self.gns.copy(), self._factor
        return twin

    def keep(self) -> None:
        """Write the training state to disk, so that nothing is trained twice."""
        self._trainer.keep()

    def on_step(self, call: Callable[[], None]) -> None:
        """Call something before every iteration that is executed, forks included."""
        self._trainer.before_step = call
