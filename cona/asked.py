"""A policy is anybody's code: whatever it raises becomes one sentence that says where.

Source: architecture.md, Style 5.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from cona.errors import ConaError, PolicyError, shown
from cona.policy import Decision, Observation, Policy, Problem
from cona.runlog import dumps
from cona.strategy import Strategy

AnswerT = TypeVar("AnswerT")

LOOK_AHEAD = ("cona.trajectory", "cona.measured")
"""Modules that train for a policy's look-ahead: what fails there is no fault of the policy."""


class AskedPolicy:
    """A policy whose faults, and answers of a wrong type, are one sentence.

    Args:
        policy: what is asked.
        name: its name with parameters.
        log: the file that gets the traceback; None: nobody keeps it.
    """

    def __init__(self, policy: Policy, name: str, log: Path | None = None) -> None:
        self._policy, self._name = policy, name
        self._then = f"; its traceback is in {log}" if log else ""

    def start(self, problem: Problem) -> Strategy:
        """Return the policy's first strategy. Raises PolicyError."""
        with calling(f"policy '{self._name}': start()", type(self._policy), then=self._then):
            strategy = self._policy.start(problem)
        return self._checked(strategy, Strategy, "start() returned")

    def decide(self, observation: Observation) -> Decision:
        """Return the policy's decision after an iteration. Raises PolicyError."""
        where = f"policy '{self._name}': decide() at sample {observation.samples}"
        with calling(where, type(self._policy), then=self._then):
            decision = self._policy.decide(observation)
            if isinstance(decision, Decision) and not decision.quiet:
                dumps({"reason": decision.reason, **decision.details})  # the log must hold it
        decision = self._checked(decision, Decision, "decide() returned")
        if decision.strategy is not None:
            self._checked(decision.strategy, Strategy, "decide() chose")
        return decision

    def _checked(self, value: object, kind: type[AnswerT], what: str) -> AnswerT:
        if isinstance(value, kind):
            return value
        raise PolicyError(
            f"policy '{self._name}': {what} {shown(value)}; it must return a "
            f"{kind.__module__}.{kind.__name__}"
        )


@contextmanager
def calling(
    what: str, kind: type | str, *, raises: type[ConaError] = PolicyError, then: str = ""
) -> Iterator[None]:
    """Turn whatever a policy's own code raises into one sentence.

    Args:
        what: begins the sentence, e.g. ``policy 'half-time': start()``.
        kind: the policy's class, or the name of its module.
        raises: the error to raise instead.
        then: ends the sentence.

    Raises:
        ConaError: of ``raises``, from what the policy raised. Other errors of the project, and
            what a look-ahead's training raises, pass.
    """
    try:
        yield
    except ConaError:
        raise
    except Exception as error:  # nothing less: a policy may raise anything
        module = kind if isinstance(kind, str) else kind.__module__
        frames = list(traceback.walk_tb(error.__traceback__))
        names = [frame.f_globals.get("__name__") for frame, _ in frames]
        if any(name in LOOK_AHEAD for name in names):
            raise
        own = [
            f" ({_near(frame.f_code.co_filename)}:{line})"
            for (frame, line), name in zip(frames, names, strict=True)
            if name == module
        ]
        said = ": ".join(filter(None, [type(error).__name__, str(error)]))
        raise raises(f"{what} failed: {said}{own[-1] if own else ''}{then}") from error


def _near(file: str) -> str:
    """Return a path from the working directory where it lies below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
