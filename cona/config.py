"""Find, read and validate the YAML files under ``config/``; the project's only YAML loader."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec, ModelSpec, Spec, TierSpec

SpecT = TypeVar("SpecT", bound=Spec)

KINDS: dict[type[Spec], str] = {ModelSpec: "models", ClusterSpec: "clusters", TierSpec: "tiers"}


def config_root() -> Path:
    """Return the folder that holds models/, clusters/ and tiers/.

    ``CONA_CONFIG_DIR`` wins, then ``config/`` beside the packages (a checkout), then the copy that
    the wheel carries.
    """
    if override := os.environ.get("CONA_CONFIG_DIR"):
        if not Path(override).is_dir():
            raise ConfigError(f"CONA_CONFIG_DIR={override}: no such folder")
        return Path(override)
    package = Path(__file__).parent
    checkout = package.parent / "config"
    return checkout if checkout.is_dir() else package / "_config"


def names(kind: type[Spec]) -> list[str]:
    """Return the names that exist for a kind of specification, sorted."""
    return sorted(p.stem for p in (config_root() / KINDS[kind]).glob("*.yaml"))


def load(kind: type[SpecT], name: str) -> SpecT:
    """Load a specification by name, or from a path that ends in ``.yaml``.

    Args:
        kind: which kind of specification.
        name: a name or a path; a cluster's may end in ``@N``, e.g. ``dgx-h100@16``: N such nodes.

    Raises:
        ConfigError: no such name or file (the nearest is offered), or a value breaks a rule.
    """
    if name.endswith((".yaml", ".yml")):
        return load_file(kind, Path(name))
    if kind is ClusterSpec and "@" in name:
        base, _, nodes = name.rpartition("@")
        spec = load(ClusterSpec, base)
        changes = {"name": f"{spec.name}@{nodes}", "num_nodes": nodes}
        return cast(SpecT, override(spec, changes, where=name))
    path = config_root() / KINDS[kind] / f"{name}.yaml"
    if name not in names(kind):
        raise ConfigError(f"unknown {KINDS[kind][:-1]} '{name}': {nearest(name, names(kind))}")
    return load_file(kind, path)


@cache
def load_file(kind: type[SpecT], path: Path) -> SpecT:
    """Load one YAML file as `read_file` does, once per process."""
    return read_file(kind, path)


def read_file(kind: type[SpecT], path: Path) -> SpecT:
    """Read one YAML file as a specification; raises ConfigError with one line per broken rule."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, no date
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values")
    return validate(kind, content, where=str(path))


def validate(kind: type[SpecT], content: dict[str, Any], *, where: str) -> SpecT:
    """Build a specification from a mapping; raises ConfigError that names key, rule and choice."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(kind, e, where) for e in error.errors())) from error


def _sentence(kind: type[BaseModel], error: Any, where: str) -> str:
    keys = [str(k) for k in error["loc"]]
    key = ".".join(keys)
    if error["type"] == "extra_forbidden":
        owner = _owner(kind, keys[:-1])
        return f"{where}: unknown key '{key}': {nearest(keys[-1], owner.model_fields)}"
    if error["type"] == "missing":
        return f"{where}: key '{key}' is missing"
    message = error["msg"].removeprefix("Value error, ")
    if not keys or error["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where}: {key} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _owner(kind: type[BaseModel], keys: list[str]) -> type[BaseModel]:
    for key in keys:
        inner = kind.model_fields[key].annotation if key in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    return kind


def override(spec: SpecT, changes: dict[str, Any], *, where: str = "override") -> SpecT:
    """Return a copy of a specification with dotted keys replaced, validated anew.

    Args:
        spec: any specification.
        changes: values by dotted key, e.g. ``{"budget.iterations": 100}``.
        where: named in the error.
    """
    content = spec.model_dump(mode="json")
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        node = content
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{where}: '{parent}' in '{dotted}' is a value without keys")
        node[last] = value
    return validate(type(spec), content, where=where)


def content_hash(*parts: Any) -> str:
    """Return a short stable hash of specifications and plain values (16 hex digits)."""
    plain = [p.model_dump(mode="json") if isinstance(p, BaseModel) else p for p in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
