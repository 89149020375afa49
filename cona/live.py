"""What real ranks carry out, and how long each of it took.

Source: architecture.md, Contracts; method.md 7 and 9.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cona.course import Course
from cona.data import EvaluationSamples, PreparedData, TrainingSamples
from cona.engine.base import LiveEngine, Switched
from cona.errors import ConaError
from cona.policy import Fork
from cona.runlog import finite
from cona.segments import Evaluation, Step
from cona.specs import TierSpec
from cona.strategy import Layout, Strategy
from cona.trainer import EVALUATION_BATCH, step_record
from cona.walk import Timed

Build = Callable[[Layout], LiveEngine]
"""Builds an engine with initial weights on all ranks."""


class LiveTrainer:
    """One engine on real ranks; where training stands is the caller's to know.

    Args:
        build: builds the engine.
        prepared: the tokenised corpus.
        tier: evaluation sets and warm-up iterations.
        seed: of the sample order.

    Attributes:
        before_step: called before every iteration; may raise to stop there.
        num_trained: iterations that were executed, those of forks included.
    """

    def __init__(self, build: Build, prepared: PreparedData, tier: TierSpec, seed: int) -> None:
        self.before_step: Callable[[], None] = _nothing
        self.num_trained = 0
        self._build = build
        self._training = TrainingSamples(prepared, seed)
        self._sets = {
            "valid": EvaluationSamples(prepared, "valid", tier.evaluation.num_samples),
            "probe": EvaluationSamples(prepared, "probe", tier.evaluation.probe_samples),
        }
        self._num_warmup = self._warmup_left = tier.clock.warmup_iterations
        self._engine: LiveEngine

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._sets["valid"].num_bytes

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return self._engine.layout

    def build(self, layout: Layout) -> None:
        """Start with initial weights; the engine before is gone."""
        self._engine = self._build(layout)

    def load(self, folder: Path) -> None:
        """Go to the state of a checkpoint; raises RunError if it is damaged or another's."""
        self._engine.load(folder)

    def save(self, folder: Path) -> float:
        """Write a checkpoint and return the seconds that it took."""
        began_s = time.perf_counter()
        self._engine.save(folder)
        return time.perf_counter() - began_s

    def train(self, course: Course, strategy: Strategy) -> Timed[Step]:
        """Run the next iteration of a course, which is the caller's to move on."""
        is_warmup = self._warmup_left > 0
        self._warmup_left = max(0, self._warmup_left - 1)
        step, seconds = self._step(course, strategy)
        return Timed(record=step, seconds=seconds, is_warmup=is_warmup)

    def _step(self, course: Course, strategy: Strategy) -> tuple[Step, float | None]:
        self.before_step()
        gbs, lr = strategy.gbs, course.next_lr(strategy.gbs)
        batch = self._training.batch(course.samples, gbs)
        stats = self._engine.train_step(batch, exec_mbs=strategy.mbs, lr=lr)
        self.num_trained += 1
        step = step_record(stats, course.iteration + 1, course.samples + gbs, gbs=gbs, lr=lr)
        return step, stats.seconds

    def evaluate(self, iteration: int, split: str = "valid") -> Timed[Evaluation]:
        """Evaluate the model, which has seen some iterations, on the fixed set of a split."""
        began_s = time.perf_counter()
        sums = self._engine.evaluate(self._sets[split].batches(EVALUATION_BATCH))
        evaluation = Evaluation(
            iteration=iteration, split=split, nats=finite(sums.nats), num_tokens=sums.num_tokens
        )
        return Timed(record=evaluation, seconds=time.perf_counter() - began_s)

    def switch(self, layout: Layout) -> Switched:
        """Go over to another layout; the next iterations are a warm-up."""
        self._warmup_left = self._num_warmup
        return self._engine.switch(layout)

    def look_ahead(self, course: Course, fork: Fork) -> Timed[Evaluation]:
        """Run a fork from here, evaluate it on the probe set, and come back to this very state.

        Each stage runs as its strategy says, in its layout too. The copy of the state is in the
        ranks' memory, and only while the fork runs. After a fork that left the layout, the next
        iterations are a warm-up.
        """
        began_s, snapshot = time.perf_counter(), self._engine.snapshot()
        try:
            evaluation = self._run(course.fork(), fork)
        except ConaError:  # a signal came: what will be saved is the state before
            self._engine.restore(snapshot)
            raise
        self._engine.restore(snapshot)
        return Timed(record=evaluation, seconds=time.perf_counter() - began_s)

    def _run(self, course: Course, fork: Fork) -> Evaluation:
        for strategy, num_iterations in fork:
            if num_iterations and strategy.layout != self.layout:
                self.switch(strategy.layout)
            for _ in range(num_iterations):
                course.turn_to(strategy.gbs)
                course.add(self._step(course, strategy)[0], strategy.gbs)
        return self.evaluate(course.iteration, "probe").record


def _nothing() -> None:
    pass
