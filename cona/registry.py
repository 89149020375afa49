"""Finds policies: one file each under ``baselines/``, or in the entry points `cona.policies`.

A policy's text form is its registered name, then its parameters, each after a hyphen: a number
follows its parameter directly (`fixed-best-gbs64`, `cona-z1.0`), a word after an equals sign
(`cona-cost=off`).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

import baselines
from cona.asked import calling
from cona.errors import ConfigError, nearest, shown
from cona.policy import Policy
from cona.specs import LARGEST_COUNT

_PARAMETER = re.compile(r"(?P<key>[a-z][a-z_]*?)(?:(?P<number>\d+(?:\.\d+)?)|=(?P<word>\w+))")


LONGEST_TEXT = 100
"""Characters of a policy's text form, which names folders."""

REQUIRED = ("name", "kind", "summary", "source")
"""What a policy class says about itself; see `cona.policy.Policy`."""

KINDS = ("offline", "online", "schedule", "bound", "ablation")
"""What `kind` may be; docs/extend/policy.md says what each means."""


@cache
def policies() -> dict[str, type[Policy]]:
    """Return every policy class by its registered name, sorted.

    Raises:
        ConfigError: a policy's file cannot be imported, it lacks what the contract asks for, or
            two policies share a name.
    """
    found: dict[str, type[Policy]] = {}
    for where, kind in [*_scanned(), *_registered()]:
        _check(where, kind)
        if found.setdefault(kind.name, kind) is not kind:
            raise ConfigError(f"{where}: two policies are named '{kind.name}': rename one")
    return dict(sorted(found.items()))


def _scanned() -> Iterator[tuple[str, type[Policy]]]:
    for info in pkgutil.iter_modules(baselines.__path__):
        where = f"baselines/{info.name}.py"
        name = f"baselines.{info.name}"
        with calling(f"{where}: the import", name, raises=ConfigError):
            module = importlib.import_module(name)
        for value in vars(module).values():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and hasattr(value, "start") and hasattr(value, "decide"):
                yield f"{where}: {value.__name__}", value


def _registered() -> Iterator[tuple[str, type[Policy]]]:
    for point in entry_points(group="cona.policies"):
        where = f"entry point {point.name}, {point.value}"
        with calling(f"{where}: the import", point.module, raises=ConfigError):
            kind = point.load()
        yield where, kind


def _check(where: str, kind: type[Policy]) -> None:
    for attribute in REQUIRED:
        if not isinstance(getattr(kind, attribute, None), str):
            raise ConfigError(
                f"{where} lacks the class attribute '{attribute}' (text); a policy has "
                f"{', '.join(REQUIRED)}, start(problem) and decide(observation): see cona/policy.py"
            )
    if kind.kind not in KINDS:
        raise ConfigError(f"{where}: kind '{kind.kind}': {nearest(kind.kind, KINDS)}")


def policy(text: str) -> Policy:
    """Build a policy from its text form, e.g. ``fixed-best-gbs64``.

    Raises:
        ConfigError: unknown name or parameter (the nearest is offered), or a value out of range.
    """
    if len(text) > LONGEST_TEXT:
        raise ConfigError(
            f"policy {shown(text)}: its name is a folder's: at most {LONGEST_TEXT} characters, not "
            f"{len(text)}"
        )
    known = policies()
    name = max((n for n in known if text == n or text.startswith(f"{n}-")), key=len, default=None)
    if name is None:
        raise ConfigError(f"unknown policy '{text}': {nearest(text, known)}")
    parts = text[len(name) + 1 :].split("-") if len(text) > len(name) else []
    kind = known[name]
    given: dict[str, Any] = {}
    for key, value in (_parameter(kind, text, part) for part in parts):
        if key in given:
            raise ConfigError(f"policy '{text}': parameter '{key}' is given twice; give it once")
        given[key] = value
    for key in _fields(kind, required=True):
        if key not in given:
            raise ConfigError(f"policy '{text}': parameter '{key}' is missing, e.g. {name}-{key}8")
    with calling(f"policy '{text}': {kind.__name__}()", kind):
        return kind(**given)


def _fields(kind: type[Policy], *, required: bool = False) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    return [
        f.name
        for f in dataclasses.fields(kind)
        if f.init and (f.default is dataclasses.MISSING or not required)
    ]


def _parameter(kind: type[Policy], text: str, part: str) -> tuple[str, Any]:
    match = _PARAMETER.fullmatch(part)
    if part in _fields(kind):
        raise ConfigError(f"policy '{text}': parameter '{part}' needs a value, e.g. {part}8")
    if match is None or match["key"] not in _fields(kind):
        raise ConfigError(
            f"policy '{text}': unknown parameter '{part}': {nearest(part, _fields(kind))}"
        )
    key, value = match["key"], match["number"] or match["word"]
    try:
        given = TypeAdapter(get_type_hints(kind)[key]).validate_python(value)
    except ValidationError as error:
        detail = error.errors()[0]
        message = "must be on or off" if detail["type"] == "bool_parsing" else detail["msg"]
        raise ConfigError(f"policy '{text}': {key} = {value}: {message.lower()}") from error
    if isinstance(given, int | float) and given > LARGEST_COUNT:
        raise ConfigError(f"policy '{text}': {key} = {value}: must be at most {LARGEST_COUNT}")
    return key, given
