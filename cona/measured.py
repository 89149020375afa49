"""A walk on real ranks: every iteration, evaluation and switch is executed, timed and recorded.

Wall time cannot be repeated, so a measured run is its own record. It is resumed from its last
intact checkpoint: what is recorded up to there is shown to the policy again and costs nothing;
what happened after it happens again. Source: architecture.md, Contracts; method.md 7.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar

from cona.data import EvaluationSamples, PreparedData, TrainingSamples
from cona.engine.base import LiveEngine
from cona.errors import DamageError
from cona.gns import GradientNoiseScale
from cona.lr import LearningRate
from cona.measured_record import MeasuredRecord
from cona.runlog import Record, finite
from cona.segments import Evaluation, Step
from cona.specs import TierSpec
from cona.strategy import Layout, Strategy
from cona.trainer import EVALUATION_BATCH, step_record
from cona.walk import Timed, frozen_gns

Build = Callable[[Layout], LiveEngine]
"""Builds an engine with initial weights on all ranks."""

RecordT = TypeVar("RecordT", Step, Evaluation)


class MeasuredTrajectory:
    """A walk on real ranks; implements ``cona.walk.Walk``.

    Args:
        folder: the run directory, which holds the record and the checkpoints.
        head: what identifies the run and the hardware, for the record.
        build: builds the engine.
        prepared: the tokenised corpus.
        lr: the learning-rate schedule.
        tier: warm-up, evaluation set, smoothing of the GNS, checkpoint interval.
        seed: of the sample order.
    """

    def __init__(
        self,
        folder: Path,
        head: Record,
        build: Build,
        prepared: PreparedData,
        lr: LearningRate,
        tier: TierSpec,
        seed: int,
    ) -> None:
        self.gns = GradientNoiseScale(tier.gns.decay_per_sample)
        self.segments: list[str] = []
        self.num_trained = self.num_read = 0
        self._folder, self._head, self._build = folder, head, build
        self._lr, self._tier = lr, tier
        self._training = TrainingSamples(prepared, seed)
        self._evaluation = EvaluationSamples(prepared, "valid", tier.evaluation.num_samples)
        self._iteration = self._samples = self._kept_at = 0
        self._strategy: Strategy | None = None
        self._in_force: Strategy | None = None  # ahead of the iterations after a switch
        self._factor = 1.0
        self._warmup_left = tier.clock.warmup_iterations
        self._before_step: Callable[[], None] = _nothing

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._evaluation.num_bytes

    @property
    def checkpoint_s(self) -> float:
        """Seconds of writing the checkpoints on record."""
        return self._record.checkpoint_s

    def on_step(self, call: Callable[[], None]) -> None:
        """Call something before every iteration that is executed."""
        self._before_step = call

    # --- start and resume -------------------------------------------------------------------------

    def begin(self, strategy: Strategy) -> Record | None:
        """Build the engine, at the last intact checkpoint if there is one.

        Returns:
            Iterations and seconds that happened after it and will happen again; None: none.

        Raises:
            RunError: another run or other hardware made the record.
        """
        self._record = MeasuredRecord(self._folder, self._head)
        checkpoint = self._load_latest()
        if checkpoint is None:
            self._engine = self._build(strategy.layout)
        else:
            self._kept_at = checkpoint["iteration"]
        lost = self._record.cut_after(checkpoint)
        num_iterations = sum(line["kind"] == "step" for line in lost)
        seconds = sum((line["seconds"] for line in lost), 0.0)
        return {"iterations": num_iterations, "seconds": seconds} if lost else None

    def _load_latest(self) -> Record | None:
        for checkpoint in self._record.checkpoints():
            self._engine = self._build(Strategy.parse(checkpoint["strategy"]).layout)
            try:
                self._engine.load(self._record.checkpoint_folder(checkpoint["iteration"]))
            except DamageError:  # the one before it takes its place
                continue
            return checkpoint
        return None

    def keep(self) -> None:
        """Write a checkpoint, unless one stands here."""
        if self._in_force is None or self._iteration == self._kept_at:
            return
        began_s = time.perf_counter()
        self._engine.save(self._record.new_checkpoint_folder(self._iteration))
        seconds = time.perf_counter() - began_s
        self._record.add_checkpoint(self._iteration, self._samples, str(self._in_force), seconds)
        self._kept_at = self._iteration

    # --- going ahead ------------------------------------------------------------------------------

    def iterate(self, strategy: Strategy) -> Timed[Step]:
        """Go one iteration ahead."""
        if self._strategy is None or strategy.gbs != self._strategy.gbs:
            # Rules that use the GNS use the value frozen here (method.md 5).
            self._factor = self._lr.factor(strategy.gbs, frozen_gns(self.gns))
        self._strategy = self._in_force = strategy
        standing = self._record.next("step")
        line = standing or self._train(strategy)
        if line["strategy"] != str(strategy):
            raise self._record.mismatch(f"an iteration of {strategy}")
        step = _record_of(Step, line)
        self._iteration, self._samples = step.iteration, step.samples
        self.gns.update(step.terms, strategy.gbs)
        if standing is None:
            self._keep_if_due(strategy.gbs)
        self.num_read += standing is not None
        self.num_trained += standing is None
        return Timed(record=step, seconds=line["seconds"], is_warmup=line["is_warmup"])

    def _train(self, strategy: Strategy) -> Record:
        self._before_step()
        gbs, samples = strategy.gbs, self._samples + strategy.gbs
        lr = self._lr.at(samples * self._lr.seq_length, self._factor)
        batch = self._training.batch(self._samples, gbs)
        stats = self._engine.train_step(batch, exec_mbs=strategy.mbs, lr=lr)
        step = step_record(stats, self._iteration + 1, samples, gbs=gbs, lr=lr)
        timing = {"seconds": stats.seconds, "is_warmup": self._warmup_left > 0}
        self._warmup_left = max(0, self._warmup_left - 1)
        return self._record.append("step", strategy=str(strategy), **asdict(step), **timing)

    def _keep_if_due(self, gbs: int) -> None:
        interval = self._tier.snapshot_interval_samples
        if self._samples // interval != (self._samples - gbs) // interval:
            self.keep()

    def validate(self) -> Timed[Evaluation]:
        """Evaluate the model here on the TTP set."""
        line = self._record.next("eval") or self._evaluate()
        evaluation = _record_of(Evaluation, line)
        if evaluation.iteration != self._iteration:
            raise self._record.mismatch(f"an evaluation at iteration {self._iteration}")
        return Timed(record=evaluation, seconds=line["seconds"])

    def _evaluate(self) -> Record:
        began_s = time.perf_counter()
        sums = self._engine.evaluate(self._evaluation.batches(EVALUATION_BATCH))
        seconds = time.perf_counter() - began_s
        evaluation = Evaluation(
            iteration=self._iteration,
            split="valid",
            nats=finite(sums.nats),
            num_tokens=sums.num_tokens,
        )
        return self._record.append("eval", **asdict(evaluation), seconds=seconds)

    def switch(self, old: Strategy, new: Strategy) -> float | None:
        """Go over to another strategy; return the seconds of a change of layout, None without."""
        line = self._record.next("switch") or self._switch(old, new)
        if (line["from"], line["to"]) != (str(old), str(new)):
            raise self._record.mismatch(f"a switch from {old} to {new}")
        self._in_force = new
        return None if old.layout == new.layout else line["seconds"]

    def _switch(self, old: Strategy, new: Strategy) -> Record:
        cost = {"seconds": 0.0, "moved_bytes": 0, "needed_bytes": 0}
        if old.layout != new.layout:
            cost |= asdict(self._engine.switch(new.layout))
            self._warmup_left = self._tier.clock.warmup_iterations
        ends = {"from": str(old), "to": str(new)}
        return self._record.append("switch", iteration=self._iteration, **ends, **cost)


def _record_of(kind: type[RecordT], line: Record) -> RecordT:
    """Return a line as the record that it holds beside its kind and timing."""
    return kind(**{field.name: line[field.name] for field in fields(kind)})


def _nothing() -> None:
    pass
