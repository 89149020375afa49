"""A walk on real ranks: every iteration, evaluation and switch is executed, timed and recorded.

Wall time cannot be repeated, so a measured run is its own record. It is resumed from its last
intact checkpoint: what is recorded up to there is shown to the policy again and costs nothing;
what happened after it happens again. Source: architecture.md, Contracts; method.md 7 and 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar

from cona.course import Course
from cona.errors import DamageError
from cona.gns import GradientNoiseScale
from cona.live import LiveTrainer
from cona.lr import LearningRate
from cona.measured_record import CHECKPOINT, MeasuredRecord
from cona.policy import Fork
from cona.runlog import Record
from cona.segments import Evaluation, Step
from cona.specs import TierSpec
from cona.strategy import Layout, Strategy
from cona.walk import Timed

RecordT = TypeVar("RecordT", Step, Evaluation)


class MeasuredTrajectory:
    """A walk on real ranks; implements ``cona.walk.Walk``.

    Args:
        folder: the run directory, which holds the record and the checkpoints.
        head: what identifies the run, the engine and the hardware, for the record.
        trainer: executes what is not on record.
        lr: the learning-rate schedule.
        tier: smoothing of the GNS and checkpoint interval.
    """

    def __init__(
        self, folder: Path, head: Record, trainer: LiveTrainer, lr: LearningRate, tier: TierSpec
    ) -> None:
        self.gns = GradientNoiseScale(tier.gns.decay_per_sample)
        self.segments: list[str] = []
        self.num_read = 0
        self._folder, self._head, self._trainer, self._tier = folder, head, trainer, tier
        self._here = Course(lr=lr, gns=self.gns)
        self._in_force: Strategy | None = None  # ahead of the iterations after a switch
        self._is_open = False
        self._kept_at = 0
        self._repeated: Record | None = None

    @property
    def num_trained(self) -> int:
        """Iterations that were executed here, those of forks included."""
        return self._trainer.num_trained

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._trainer.num_evaluation_bytes

    @property
    def checkpoint_s(self) -> float:
        """Seconds of writing the checkpoints on record."""
        return self._record.seconds_of(CHECKPOINT)

    @property
    def probe_s(self) -> float:
        """Seconds of looking ahead on record."""
        return self._record.seconds_of("probe")

    def on_step(self, call: Callable[[], None]) -> None:
        """Call something before every iteration that is executed, forks included."""
        self._trainer.before_step = call

    # --- start and resume -------------------------------------------------------------------------

    def begin(self, strategy: Strategy) -> Record | None:
        """Build the engine, at the last intact checkpoint if there is one.

        Returns:
            Iterations and seconds that happened after it and will happen again, and the reason if
            none of the checkpoints can be used; None: nothing happens again.

        Raises:
            RunError: another run or other hardware made the record.
        """
        self._open(strategy.layout)
        if not self._kept_at and self._trainer.layout != strategy.layout:
            self._trainer.build(strategy.layout)  # a policy has looked ahead, from another one
        return self._repeated

    def _open(self, layout: Layout) -> None:
        """Read the record and build the engine, unless that is done."""
        if self._is_open:
            return
        self._record = MeasuredRecord(self._folder, self._head)
        checkpoint, reason = self._load_latest()
        if checkpoint is None:
            self._trainer.build(layout)
        else:
            self._kept_at = checkpoint["iteration"]
        if lost := self._record.cut_after(checkpoint):
            num_iterations = sum(line["kind"] == "step" for line in lost)
            seconds = sum((line["seconds"] for line in lost), 0.0)
            self._repeated = {"iterations": num_iterations, "seconds": seconds}
            self._repeated |= {"reason": reason} if reason else {}
        self._is_open = True

    def _load_latest(self) -> tuple[Record | None, str | None]:
        """Load the last intact checkpoint and return it, or why none on record can be used."""
        why = "the folders are gone"
        for checkpoint in self._record.checkpoints():
            self._trainer.build(Strategy.parse(checkpoint["strategy"]).layout)
            try:
                self._trainer.load(self._record.checkpoint_folder(checkpoint["iteration"]))
            except DamageError as error:  # the one before it takes its place
                why = str(error)
                continue
            return checkpoint, None
        has_any = self._record.has_checkpoints
        return None, f"no checkpoint can be used: {why}" if has_any else None

    def keep(self) -> None:
        """Write a checkpoint, unless nothing has happened since the last one.

        Evaluations, forks and switches that followed it leave its state as it is: its folder serves
        again, for any layout can read it.
        """
        here, seconds = self._here, 0.0
        if here.iteration == 0 or self._record.is_kept:
            return
        if here.iteration != self._kept_at:
            seconds = self._trainer.save(self._record.new_checkpoint_folder(here.iteration))
        self._record.add_checkpoint(here.iteration, here.samples, str(self._in_force), seconds)
        self._kept_at = here.iteration

    # --- going ahead ------------------------------------------------------------------------------

    def iterate(self, strategy: Strategy) -> Timed[Step]:
        """Go one iteration ahead."""
        self._here.turn_to(strategy.gbs)
        self._in_force = strategy
        standing = self._record.next("step")
        line = standing or self._train(strategy)
        if line["strategy"] != str(strategy):
            raise self._record.mismatch(f"an iteration of {strategy}")
        step = _record_of(Step, line)
        self._here.add(step, strategy.gbs)
        if standing is None:
            self._keep_if_due(strategy.gbs)
        self.num_read += standing is not None
        return Timed(record=step, seconds=line["seconds"], is_warmup=line["is_warmup"])

    def _train(self, strategy: Strategy) -> Record:
        timed = self._trainer.train(self._here, strategy)
        timing = {"seconds": timed.seconds, "is_warmup": timed.is_warmup}
        return self._record.append("step", strategy=str(strategy), **asdict(timed.record), **timing)

    def _keep_if_due(self, gbs: int) -> None:
        interval, samples = self._tier.snapshot_interval_samples, self._here.samples
        if samples // interval != (samples - gbs) // interval:
            self.keep()

    def validate(self) -> Timed[Evaluation]:
        """Evaluate the model here on the TTP set."""
        line = self._record.next("eval") or self._evaluate()
        evaluation = _record_of(Evaluation, line)
        if evaluation.iteration != self._here.iteration:
            raise self._record.mismatch(f"an evaluation at iteration {self._here.iteration}")
        return Timed(record=evaluation, seconds=line["seconds"])

    def _evaluate(self) -> Record:
        timed = self._trainer.evaluate(self._here.iteration)
        return self._record.append("eval", **asdict(timed.record), seconds=timed.seconds)

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
            cost |= asdict(self._trainer.switch(new.layout))
        ends = {"from": str(old), "to": str(new)}
        return self._record.append("switch", iteration=self._here.iteration, **ends, **cost)

    # --- looking ahead ----------------------------------------------------------------------------

    def probe(self, fork: Fork) -> float:
        """Return the log perplexity on the probe set after (strategy, iterations) stages from here.

        The ranks really run the stages and then go back: the training state, the clock, the GNS
        and the iterations on record are as before. The answer is a line of the record, so that a
        continued run need not look ahead again. Infinity means that the model diverged.

        Source: method.md 9
        """
        self._open(fork[0][0].layout)
        line = self._record.next("probe") or self._look_ahead(fork)
        if line["from"] != self._here.iteration or line["stages"] != _stages(fork):
            raise self._record.mismatch(f"a fork at iteration {self._here.iteration}")
        evaluation = _record_of(Evaluation, line)
        return math.inf if evaluation.nats is None else evaluation.nats / evaluation.num_tokens

    def _look_ahead(self, fork: Fork) -> Record:
        timed = self._trainer.look_ahead(self._here, fork)
        where = {"from": self._here.iteration, "stages": _stages(fork)}
        return self._record.append("probe", **where, **asdict(timed.record), seconds=timed.seconds)


def _stages(fork: Fork) -> list[list[str | int]]:
    """Return a fork as it stands in the record."""
    return [[str(strategy), num_iterations] for strategy, num_iterations in fork]


def _record_of(kind: type[RecordT], line: Record) -> RecordT:
    """Return a line as the record that it holds beside its kind and timing."""
    return kind(**{field.name: line[field.name] for field in fields(kind)})
