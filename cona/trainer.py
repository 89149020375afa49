"""Keeps one engine at a wanted point of the trajectory tree.

Going back to a point restores the nearest kept state and repeats the recorded steps from there.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cona.data import EvaluationSamples, PreparedData, TrainingSamples
from cona.engine.base import Engine, StepStats
from cona.errors import DamageError, RunError
from cona.gns import gradient_terms
from cona.runlog import finite
from cona.segments import Evaluation, Position, Step
from cona.specs import TierSpec
from cona.storage import delete, writing
from cona.strategy import exec_mbs

REPLAY_TOLERANCE = 1e-4
"""Relative difference between a recorded and a repeated loss above which they do not match."""

EVALUATION_BATCH = 32
"""Sequences that one evaluation step sees; perplexity does not depend on it beyond rounding."""

NUM_STATES_IN_MEMORY = 8
"""States kept in memory: where the oracle forks and where its forks ended."""


class Trainer:
    """One engine that can be sent to any recorded position.

    Args:
        build: returns a freshly initialised engine; called at most once.
        prepared: the tokenised corpus.
        tier: evaluation sets, executed micro-batch and snapshot interval.
        seed: of the sample order.

    Attributes:
        before_step: called before every executed iteration; may raise to stop there.
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
        self.before_step: Callable[[], None] = _nothing

    @property
    def num_evaluation_bytes(self) -> int | None:
        """UTF-8 bytes of the evaluation set's predicted tokens; None where not defined."""
        return self._evaluation["valid"].num_bytes

    def train(self, position: Position, gbs: int, lr: float) -> Step:
        """Execute the iteration that follows a position; the record is the caller's to store."""
        self.before_step()
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

    def keep(self) -> None:
        """Write the training state to disk, wherever the engine is."""
        if self._engine is None or self._at is None:
            return
        path = self._at.segment.snapshot_path(self._at.iteration)
        if not path.exists():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            self._engine.save(path)
            self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        """Delete all but the latest snapshots of a segment, if the tier limits them."""
        if (kept := self._tier.snapshots_kept) is None:
            return
        latest_first = sorted(folder.glob("*.pt"), key=lambda p: int(p.stem), reverse=True)
        for path in latest_first[kept:]:
            delete(path)

    def _execute(self, engine: Engine, position: Position, gbs: int, lr: float) -> Step:
        batch = self._training.batch(position.samples, gbs)
        stats = engine.train_step(batch, exec_mbs=exec_mbs(gbs, self._tier.exec_mbs_max), lr=lr)
        return step_record(stats, position.iteration + 1, position.samples + gbs, gbs=gbs, lr=lr)

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
            except DamageError:  # an earlier state and the recorded steps replace it
                self._at = None
                delete(path)
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


def step_record(stats: StepStats, iteration: int, samples: int, *, gbs: int, lr: float) -> Step:
    """Return the record of an iteration.

    Args:
        stats: what the engine saw.
        iteration: optimizer steps done after it.
        samples: samples consumed after it.
        gbs: samples of the iteration.
        lr: its learning rate.
    """
    terms = gradient_terms(stats.sum_sq_microbatch, stats.grad_norm, stats.num_microbatches, gbs)
    return Step(
        iteration=iteration,
        samples=samples,
        loss_nats=finite(stats.loss_nats),
        num_tokens=stats.num_tokens,
        lr=lr,
        grad_norm=finite(stats.grad_norm),
        tr_sigma=terms.tr_sigma if terms else None,
        mu_sq=terms.mu_sq if terms else None,
        skipped=stats.skipped,
    )


def _nothing() -> None:
    pass


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=REPLAY_TOLERANCE)
