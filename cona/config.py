"""Find, read and validate the YAML files under ``config/``; the project's only YAML loader."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from cona.errors import ConfigError, nearest, shown
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, Spec, TierSpec

SpecT = TypeVar("SpecT", bound=Spec)

MOST_RULES = 5
"""Broken rules that one error names; a file of another kind breaks dozens."""

KINDS: dict[type[Spec], str] = {
    ModelSpec: "models",
    ClusterSpec: "clusters",
    TierSpec: "tiers",
    ScaleSpec: "scales",
}


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
        name: a name or a path; a cluster's may end in ``@N``, e.g. ``dgx-h100@16``: N such nodes; a
            tier's in ``@SCALE``, e.g. ``paper@tiny``: that tier with the settings of a scale.

    Raises:
        ConfigError: no such name or file (the nearest is offered), or a value breaks a rule.
    """
    if kind is TierSpec and (parts := _tier_and_scale(name)):
        return cast(SpecT, scaled(load(TierSpec, parts[0]), load(ScaleSpec, parts[1])))
    if name.endswith((".yaml", ".yml")):
        return load_file(kind, Path(name))
    if kind is ClusterSpec and "@" in name:
        base, _, nodes = name.rpartition("@")
        if "@" in base and not base.endswith((".yaml", ".yml")):
            raise ConfigError(f"unknown cluster {shown(name)}: {nearest(name, names(kind))}")
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
        found = [_sentence(kind, e, where) for e in error.errors()]
        rest = len(found) - MOST_RULES
        more = [f"and {rest} more"] if rest > 0 else []
        raise ConfigError("; ".join(found[:MOST_RULES] + more)) from error


def _sentence(kind: type[BaseModel], error: Any, where: str) -> str:
    keys = [str(k) for k in error["loc"]]
    key = ".".join(keys)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: unknown key '{key}': {nearest(keys[-1], _known_keys(kind, keys[:-1]))}"
    if error["type"] == "missing":
        return f"{where}: key '{key}' is missing"
    message = _message(error)
    if not keys or error["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where}: {key} = {shown(error['input'])}: {message[0].lower()}{message[1:]}"


def _message(error: Any) -> str:
    """Return pydantic's words, with a limit as people write it: 1e-30."""
    message: str = error["msg"].removeprefix("Value error, ")
    limits = error.get("ctx", {})
    limit = next((limits[key] for key in ("gt", "ge", "lt", "le") if key in limits), None)
    return f"{message.rpartition(' ')[0]} {limit:g}" if isinstance(limit, float) else message


def _known_keys(kind: type[BaseModel], keys: list[str]) -> list[str]:
    for key in keys:
        inner = kind.model_fields[key].annotation if key in kind.model_fields else None
        if isinstance(inner, type) and is_dataclass(inner):
            return [field.name for field in fields(inner)]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    return list(kind.model_fields)


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


def scaled(tier: TierSpec, scale: ScaleSpec) -> TierSpec:
    """Return a tier with the settings of a scale, under a name that says so.

    Args:
        tier: the tier.
        scale: what replaces some of its settings.

    Raises:
        ConfigError: the scale does not fit: an unknown key, or a rule that both together break.
    """
    where = f"tier '{tier.name}' at scale '{scale.name}'"
    own = {
        "name": f"{tier.name}-{scale.name}",
        "description": f"{tier.name} at scale {scale.name}: {scale.description}",
        "gives_verdicts": tier.gives_verdicts and scale.gives_verdicts,
    }
    left = {
        "policies": [p for p in tier.policies if p not in scale.leave_out],
        "seeds_of": {p: s for p, s in tier.seeds_of.items() if p not in scale.leave_out},
    }
    return override(tier, left | _dotted(scale.settings) | own, where=where)


def _tier_and_scale(name: str) -> tuple[str, str] | None:
    """Split TIER@SCALE at the last @ that is not in the name of a folder; None: no scale."""
    if Path(name).is_file():
        return None
    for i in reversed([i for i, character in enumerate(name) if character == "@"]):
        base = name[:i]
        if base.endswith((".yaml", ".yml")) or Path(base).name == base:
            return base, name[i + 1 :]
    return None


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}.{rest}": inner for rest, inner in _dotted(value).items()}
        else:
            flat[str(key)] = value
    return flat


def content_hash(*parts: Any) -> str:
    """Return a short stable hash of specifications and plain values (16 hex digits)."""
    plain = [p.model_dump(mode="json") if isinstance(p, BaseModel) else p for p in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
