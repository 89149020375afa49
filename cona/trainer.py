"""Keeps one engine at a wanted point of the trajectory tree, and walks the tree with it.

The engine is built only when something must really be trained; walking along recorded iterations
needs none. Going back to a point restores the nearest kept state and repeats the recorded steps.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from cona.data import EvaluationSamples, PreparedData, TrainingSamples
from cona.engine.base import Engine
from cona.errors import RunError
from cona.gns import GradientNoiseScale, gradient_terms
from cona.lr import LearningRate
from cona.specs import TierSpec
from cona.strategy import exec_mbs
from cona.trajectory import Evaluation, Position, Segment, Step

REPLAY_TOLERANCE = 1e-4
"""Relative difference between a recorded and a repeated loss above which they do not match."""

EVALUATION_BATCH = 32
"""Sequences that one evaluation step sees; perplexity does not depend on it beyond rounding."""

NUM_STATES_IN_MEMORY = 8
"""States kept in memory: where the oracle forks and where its forks ended."""


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


class Trainer:
    """One engine that can be sent to any recorded position.

    Args:
        build: returns a freshly initialised engine; called at most once.
        prepared: the tokenised corpus.
        tier: evaluation sets, executed micro-batch and snapshot interval.
        seed: of the sample order.
    """

    def __init__(
        self, build: Callable[[], Engine], prepared: PreparedData, tier: TierSpec, seed: int
    ) -> None:
        self._build, self._tier = build, tier
        self._training = TrainingSamples(prepared, seed)
        self._evaluation = {
            "valid": EvaluationSamples(prepared, "valid", tier.evaluation.num_samples),
            "probe": EvaluationSamples(prepared, "probe", tier.evaluation.probe_samples),
        }
        self._engine: Engine | None = None
        self._at: Position | None = None
        self._states: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._initial: Any = None

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._evaluation["valid"].num_bytes

    def train(self, position: Position, gbs: int, lr: float) -> Step:
        """Execute the iteration that follows a position; the record is the caller's to store."""
        engine = self._go_to(position)
        step = self._execute(engine, position, gbs, lr)
        self._at = position.ahead(gbs)
        return step

    def evaluate(self, position: Position, split: str) -> Evaluation:
        """Evaluate the model at a position on the fixed set of a split."""
        sums = self._go_to(position).evaluate(self._evaluation[split].batches(EVALUATION_BATCH))
        return Evaluation(
            iteration=position.iteration,
            split=split,
            nats=finite(sums.nats),
            num_tokens=sums.num_tokens,
        )

    def keep(self, position: Position) -> None:
        """Write the training state at a position to disk, if the engine is there."""
        path = position.segment.snapshot_path(position.iteration)
        if self._engine and self._at and self._at.key == position.key and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._engine.save(path)

    def _execute(self, engine: Engine, position: Position, gbs: int, lr: float) -> Step:
        batch = self._training.batch(position.samples, gbs)
        stats = engine.train_step(batch, exec_mbs=exec_mbs(gbs, self._tier.exec_mbs_max), lr=lr)
        terms = gradient_terms(
            stats.sum_sq_microbatch, stats.grad_norm, stats.num_microbatches, gbs
        )
        return Step(
            iteration=position.iteration + 1,
            samples=position.samples + gbs,
            loss_nats=finite(stats.loss_nats),
            num_tokens=stats.num_tokens,
            lr=lr,
            grad_norm=finite(stats.grad_norm),
            tr_sigma=terms.tr_sigma if terms else None,
            mu_sq=terms.mu_sq if terms else None,
            skipped=stats.skipped,
        )

    def _go_to(self, target: Position) -> Engine:
        if self._engine is None:
            self._engine = self._build()
            self._initial = self._engine.snapshot()
        engine = self._engine
        if self._at is not None and self._at.key == target.key:
            return engine
        to_repeat: list[Position] = []
        point = target
        while not self._reach(engine, point):
            to_repeat.append(point)
            point = point.behind()
        for ahead in reversed(to_repeat):
            self._repeat(engine, ahead)
        return engine

    def _reach(self, engine: Engine, point: Position) -> bool:
        """Put the engine at a point if its state is at hand."""
        if self._at is not None and self._at.key == point.key:
            return True
        path = point.segment.snapshot_path(point.iteration)
        if (state := self._states.get(point.key)) is not None:
            self._remember(engine)  # may push the wanted state out, so that is taken first
            engine.restore(state)
        elif point.segment.gbs is None:
            self._remember(engine)
            engine.restore(self._initial)
        elif path.exists():
            self._remember(engine)
            try:
                engine.load(path)
            except RunError:  # damaged: an earlier state and the recorded steps replace it
                self._at = None
                path.unlink()
                return False
        else:
            return False
        self._at = point
        return True

    def _remember(self, engine: Engine) -> None:
        if self._at is None:
            return
        self._states[self._at.key] = engine.snapshot()
        self._states.move_to_end(self._at.key)
        while len(self._states) > NUM_STATES_IN_MEMORY:
            self._states.popitem(last=False)

    def _repeat(self, engine: Engine, ahead: Position) -> None:
        """Execute a recorded step again and check that it is the same."""
        recorded = ahead.segment.step(ahead.iteration)
        if recorded is None or ahead.segment.gbs is None:
            raise RunError(f"{ahead.segment.folder}: iteration {ahead.iteration} is not recorded")
        step = self._execute(engine, ahead.behind(), ahead.segment.gbs, recorded.lr)
        if not _same(step.loss_nats, recorded.loss_nats):
            raise RunError(
                f"{ahead.segment.folder}: iteration {ahead.iteration} gave a loss of "
                f"{step.loss_nats} nats, recorded {recorded.loss_nats}; other software or hardware "
                "made it: delete the folder to train it again"
            )
        self._at = ahead


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=REPLAY_TOLERANCE)


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

    def step(self, gbs: int) -> Step:
        """Go one iteration of ``gbs`` samples ahead and return its record."""
        behind, ahead = self.position, self.position.ahead(gbs)
        if ahead.segment is not behind.segment:
            # Rules that use the GNS use the value frozen here (method.md 5).
            self._factor = self._lr.factor(gbs, self.gns.estimate().gns)
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
            self._trainer.keep(ahead)
        return step

    def evaluate(self, split: str = "valid") -> Evaluation:
        """Return the evaluation of the model here on a fixed set, measured at most once."""
        segment, iteration = self.position.segment, self.position.iteration
        known = segment.evaluation(iteration, split)
        if known is None:
            known = self._trainer.evaluate(self.position, split)
            segment.add_evaluation(known)
        return known

    def probe(self, plan: Sequence[tuple[int, int]]) -> float:
        """Return the log perplexity on the probe set after (gbs, iterations) stages from here.

        This walk does not move. Infinity means that the model diverged. Source: method.md 9.
        """
        fork = self._fork()
        for gbs, iterations in plan:
            for _ in range(iterations):
                fork.step(gbs)
        evaluation = fork.evaluate("probe")
        return math.inf if evaluation.nats is None else evaluation.nats / evaluation.num_tokens

    def _fork(self) -> Trajectory:
        twin = Trajectory(self.position.segment, self._trainer, self._lr, self._tier)
        twin.position, twin.gns, twin._factor = self.position, self.gns.copy(), self._factor
        return twin

    def keep(self) -> None:
        """Write the training state here to disk, so that nothing is trained twice."""
        self._trainer.keep(self.position)
