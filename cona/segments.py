"""What training does to a model, stored once and shared by every run that passes through it.

A trajectory depends on (model, data, seed, learning-rate rule, sequence of global batch sizes) and
on no clock or layout. It is kept as a tree: each *segment* is a stretch of iterations at one global
batch size that branches off its parent at some iteration, and its name is a hash of that history.
A `cona.trajectory.Trajectory` walks the tree; where that ends it trains and appends.

Two processes, on any hosts, may extend one segment: both compute the same lines (training is
deterministic), a lock lets one of them write at a time, and whoever comes second finds them
written. Source: architecture.md, Contracts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from cona.config import content_hash
from cona.errors import RunError
from cona.gns import GradientTerms
from cona.lock import Lock
from cona.runlog import SharedLines, write_json


@dataclass(frozen=True, kw_only=True)
class Step:
    """One iteration, as recorded in steps.jsonl; None marks a non-finite quantity."""

    iteration: int
    """Optimizer steps done after this one."""
    samples: int
    """Samples consumed after this one."""
    loss_nats: float | None
    """Sum of the loss over predicted tokens, nats."""
    num_tokens: int
    """Predicted tokens."""
    lr: float
    grad_norm: float | None
    """|G| before clipping."""
    tr_sigma: float | None
    """Unbiased term of the GNS; None where not measurable."""
    mu_sq: float | None
    skipped: bool
    """The update was skipped (non-finite gradient)."""

    @property
    def loss(self) -> float | None:
        """Mean loss in nats per predicted token."""
        return None if self.loss_nats is None else self.loss_nats / self.num_tokens

    @property
    def terms(self) -> GradientTerms | None:
        """The terms for the gradient noise scale, if measured and the update was not skipped."""
        if self.tr_sigma is None or self.mu_sq is None or self.skipped:
            return None
        return GradientTerms(tr_sigma=self.tr_sigma, mu_sq=self.mu_sq)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation on a fixed set, as recorded in evals.jsonl; None: not finite."""

    iteration: int
    split: str
    nats: float | None
    num_tokens: int

    @property
    def perplexity(self) -> float | None:
        """exp(nats per predicted token); None if that is not finite."""
        if self.nats is None or self.nats / self.num_tokens > 700:
            return None
        return math.exp(self.nats / self.num_tokens)


RecordT = TypeVar("RecordT", Step, Evaluation)


class Segment:
    """A folder with the iterations at one global batch size since a branching point.

    Args:
        store: the folder `_trajectories`.
        recipe: everything that determines training except the batch sizes (root segment only).
        parent: the position that this segment branches off; None for the root.
        gbs: global batch size in samples; None for the root, which has no iterations.
    """

    def __init__(
        self,
        store: Path,
        *,
        recipe: dict[str, Any] | None = None,
        parent: Position | None = None,
        gbs: int | None = None,
    ) -> None:
        self.store, self.parent, self.gbs = store, parent, gbs
        self.id = content_hash([*parent.key, gbs] if parent else recipe)
        self.folder = store / self.id
        self.start_iteration = parent.iteration if parent else 0
        self.start_samples = parent.samples if parent else 0
        self._children: dict[tuple[int, int], Segment] = {}
        self._steps: list[Step] = []
        self._evals: dict[tuple[int, str], Evaluation] = {}
        self._describe(recipe)
        self._lock = Lock(self.folder, wait_s=math.inf, beats=False)  # held for one line
        self._step_lines = SharedLines(self.folder / "steps.jsonl")
        self._eval_lines = SharedLines(self.folder / "evals.jsonl")
        self._read()

    def _describe(self, recipe: dict[str, Any] | None) -> None:
        if (self.folder / "segment.json").exists():
            return
        description = {
            "id": self.id,
            "parent": self.parent.segment.id if self.parent else None,
            "start_iteration": self.start_iteration,
            "start_samples": self.start_samples,
            "gbs": self.gbs,
            "recipe": recipe,
        }
        write_json(self.folder / "segment.json", description)

    def _read(self) -> None:
        for record in self._step_lines.unread():
            step = self._parse(Step, record)
            if step.iteration != self.end_iteration + 1:
                raise RunError(
                    f"{self._step_lines.path}: iteration {step.iteration} follows "
                    f"{self.end_iteration}; delete {self.folder} to train it again"
                )
            self._steps.append(step)
        for record in self._eval_lines.unread():
            evaluation = self._parse(Evaluation, record)
            self._evals[evaluation.iteration, evaluation.split] = evaluation

    def _parse(self, kind: type[RecordT], record: object) -> RecordT:
        try:
            return kind(**record)  # type: ignore[arg-type]
        except TypeError as error:
            raise RunError(
                f"{self.folder}: a line is not a {kind.__name__.lower()}; delete the folder to "
                "train it again"
            ) from error

    @property
    def end_iteration(self) -> int:
        """The last recorded iteration."""
        return self.start_iteration + len(self._steps)

    def step(self, iteration: int) -> Step | None:
        """Return the step that ended at an iteration, if recorded."""
        index = iteration - self.start_iteration - 1
        return self._steps[index] if 0 <= index < len(self._steps) else None

    def evaluation(self, iteration: int, split: str) -> Evaluation | None:
        """Return the evaluation at an iteration, if recorded."""
        return self._evals.get((iteration, split))

    def add_step(self, step: Step) -> None:
        """Append a step unless another process did so in the meantime."""
        with self._lock:
            self._read()
            if self.step(step.iteration) is None:
                self._step_lines.append(asdict(step))
                self._steps.append(step)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Append an evaluation unless another process did so in the meantime."""
        key = (evaluation.iteration, evaluation.split)
        with self._lock:
            self._read()
            if key not in self._evals:
                self._eval_lines.append(asdict(evaluation))
                self._evals[key] = evaluation

    def child(self, position: Position, gbs: int) -> Segment:
        """Return the segment that goes on from a position of this one at a batch size."""
        if gbs == self.gbs:
            return self
        key = (position.iteration, gbs)
        if key not in self._children:
            self._children[key] = Segment(self.store, parent=position, gbs=gbs)
        return self._children[key]

    def snapshot_path(self, iteration: int) -> Path:
        """Return where the training state at an iteration is kept, if it is kept."""
        return self.folder / "snapshots" / f"{iteration}.pt"


@dataclass(frozen=True)
class Position:
    """A point of the tree: an iteration of a segment."""

    segment: Segment
    iteration: int
    samples: int

    def ahead(self, gbs: int) -> Position:
        """Return the position one iteration of ``gbs`` samples further."""
        segment = self.segment.child(self, gbs)
        return Position(segment, self.iteration + 1, self.samples + gbs)

    def behind(self) -> Position:
        """Return the position one iteration earlier; raises RunError at the root."""
        if self.segment.gbs is None or self.segment.parent is None:
            raise RunError("there is nothing before the first iteration")
        if self.iteration - 1 == self.segment.start_iteration:
            return self.segment.parent
        return Position(self.segment, self.iteration - 1, self.samples - self.segment.gbs)

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the training state at this point."""
        return (self.segment.id, self.iteration)
