"""The exceptions that a user may see; each message names the value, the rule and a valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConaError(Exception):
    """Base of every error that the command line prints as one line, without a traceback."""

    exit_code: int = 1
    """Exit status of the command that the error ends."""


class ConfigError(ConaError):
    """A configuration, command-line value or specification breaks a rule."""

    exit_code = 2


class DataError(ConaError):
    """A corpus, tokenizer or token file cannot be used."""

    exit_code = 2


class RunError(ConaError):
    """A run directory, trajectory or checkpoint cannot be continued."""


class DamageError(RunError):
    """A file is not what was written; an earlier one may be intact."""


def nearest(value: str, choices: Iterable[str]) -> str:
    """Return the sentence that offers the closest valid choice, or lists all of them.

    Args:
        value: what the user wrote.
        choices: the valid names, in the order in which they are listed.
    """
    names = list(choices)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid: {', '.join(names)}" if names else "there are none"
