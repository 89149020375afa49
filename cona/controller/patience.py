"""How long an online policy waits between two decisions. Source: method.md 3b."""

from __future__ import annotations

from cona.policy import Decision, Observation, Problem


class Patience:
    """Lets a policy decide once enough was seen since the start or since it last began anew.

    Online rivals wait as long as `cona` does (the tier's controller limits): how often they decide
    must not be what tells them apart. ASSUMED where their papers do not say.

    Args:
        problem: what the policy knows; its tier has the limits.
    """

    def __init__(self, problem: Problem) -> None:
        self._limits = problem.tier.controller
        self._start_iteration = self._start_samples = 0

    def wait(self, seen: Observation) -> Decision | None:
        """Return the decision to wait, or None once enough was seen."""
        if seen.iteration - self._start_iteration < self._limits.min_iterations:
            return Decision(strategy=None, reason="too few iterations", quiet=True)
        if seen.samples - self._start_samples < self._limits.min_samples:
            return Decision(strategy=None, reason="too few samples", quiet=True)
        return None

    def begin(self, seen: Observation) -> None:
        """Begin to wait anew."""
        self._start_iteration, self._start_samples = seen.iteration, seen.samples
