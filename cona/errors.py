"""The exceptions that a user may see; each message names the value, the rule and a valid choice."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class ConaError(Exception):
    """Base of every error that the command line prints as one line, without a traceback."""

    exit_code: int = 1
    """Exit status of the command that the error ends."""

    def __str__(self) -> str:
        """Return the message on one line: names that users wrote may hold any character."""
        text = super().__str__()
        return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


class ConfigError(ConaError):
    """A configuration, command-line value or specification breaks a rule."""

    exit_code = 2


class DataError(ConaError):
    """A corpus, tokenizer or token file cannot be used."""

    exit_code = 2


class RunError(ConaError):
    """A run directory, trajectory or checkpoint cannot be continued."""


class PolicyError(RunError):
    """A policy's own code failed, or answered what no policy may."""


class DamageError(RunError):
    """A file is not what was written; an earlier one may be intact."""


class StorageError(RunError):
    """The file system refuses to write; what was written before stands."""


def shown(value: object) -> str:
    """Return a value as a sentence can hold it: short, on one line, whatever it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no decimal of more than 4,300 digits
        return "a number of thousands of digits"


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    short.maxlevel = 3  # values may contain each other many times over
    return short


_SHORT = _short()


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
