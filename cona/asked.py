"""A policy is anybody's code: whatever it raises becomes one sentence that says where.

Source: architecture.md, Style 5.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from cona.errors import ConaError, ConfigError, PolicyError, shown
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
        where = f"policy '{self._name}': start()"
        with calling(where, type(self._policy), then=self._then):
            strategy = self._policy.start(problem)
        return _checked(strategy, Strategy, f"{where} returned")

    def decide(self, observation: Observation) -> Decision:
        """Return the policy's decision after an iteration. Raises PolicyError."""
        where = f"policy '{self._name}': decide() at sample {observation.samples}"
        # A strategy that breaks a rule is no fault of the user's settings, as it may be in start().
        with calling(where, type(self._policy), blames=ConfigError, then=self._then):
            decision = self._policy.decide(observation)
        decision = _checked(decision, Decision, f"{where} returned")
        if decision.strategy is not None:
            _checked(decision.strategy, Strategy, f"{where} chose")
        if not decision.quiet:
            _check_written(decision, where)
        return decision


def _checked(value: object, kind: type[AnswerT], what: str) -> AnswerT:
    if isinstance(value, kind):
        return value
    raise PolicyError(f"{what} {shown(value)}; it must return a {kind.__module__}.{kind.__name__}")


def _check_written(decision: Decision, where: str) -> None:
    """Refuse what the log cannot hold."""
    for key, value in {"reason": decision.reason, **decision.details}.items():
        try:
            dumps({key: value})
        except (TypeError, ValueError) as error:  # another type; NaN or infinity
            raise PolicyError(
                f"{where}: {shown(key)} is {shown(value)}, which no log can hold; give text, a "
                "finite number or None"
            ) from error


@contextmanager
def calling(
    what: str,
    kind: type | str,
    *,
    raises: type[ConaError] = PolicyError,
    blames: tuple[type[ConaError], ...] | type[ConaError] = (),
    then: str = "",
) -> Iterator[None]:
    """Turn whatever a policy's own code raises into one sentence.

    Args:
        what: begins the sentence, e.g. ``policy 'half-time': start()``.
        kind: the policy's class, or the name of its module.
        raises: the error to raise instead.
        blames: errors of the project that are the policy's fault, too.
        then: ends the sentence.

    Raises:
        ConaError: of ``raises``, from what the policy raised. Other errors of the project, and
            what a look-ahead's training raises, pass.
    """
    try:
        yield
    except Exception as error:  # nothing less: a policy may raise anything
        if isinstance(error, ConaError) and not isinstance(error, blames):
            raise
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
