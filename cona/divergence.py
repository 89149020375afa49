"""When is a run lost? It ends as diverged once nothing usable came for a set patience.

Source: method.md 7, Divergence.
"""

from __future__ import annotations

from cona.segments import Step
from cona.specs import DivergenceSpec


class DivergenceWatch:
    """Watches the iterations of one run.

    Args:
        spec: the tier's patience.

    Attributes:
        num_skipped: iterations whose update was skipped, because the gradient was not finite.
    """

    def __init__(self, spec: DivergenceSpec) -> None:
        self._spec = spec
        self._first_loss: float | None = None
        self._num_in_a_row = 0
        self.num_skipped = 0

    def see(self, step: Step) -> bool:
        """Take one more iteration into account and return whether the run has diverged."""
        self.num_skipped += step.skipped
        self._num_in_a_row = self._num_in_a_row + 1 if self._is_lost(step) else 0
        return self._num_in_a_row >= self._spec.patience_iterations

    def _is_lost(self, step: Step) -> bool:
        """Return whether an iteration has no finite loss or gradient, or far too large a loss."""
        loss = step.loss
        if loss is None or step.grad_norm is None:
            return True
        if self._first_loss is None:
            self._first_loss = loss
        return loss > self._spec.loss_factor * self._first_loss
