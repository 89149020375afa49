"""Which GPU type of the cost model a name in somebody's file means."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cona.cost.gpus import GPUS
from cona.errors import ConfigError
from cona.specs import ClusterSpec

_MODEL = re.compile(r"[a-z]{1,2}\d{2,3}")
_MEMORY_GB = re.compile(r"(\d+)gb?$")


def canonical(name: str) -> str:
    """Return a GPU name without case, '-', '_', blanks and the B of GB: ``A100-80GB`` is a10080g.

    Args:
        name: a GPU type as somebody wrote it.
    """
    parts = re.split(r"[-_\s]+", name.strip().lower())
    return "".join(re.sub(r"(\d+g)b$", r"\1", part) for part in parts)


def memory_gb(name: str) -> float | None:
    """Return the memory that a GPU name states, in GB (1e9 bytes); None if it states none."""
    parts = re.split(r"[-_\s]+", name.strip().lower())
    found = [match for part in parts if (match := _MEMORY_GB.match(part))]
    return float(found[0].group(1)) if found else None


def gpu_key(name: str, known: Iterable[str] = ()) -> str:
    """Return the GPU type that a name means.

    A name that differs only in case, '-', '_' and a final 'B' matches exactly. Any other (a power
    limit, a socket: ``H100-96GB-500W``) takes the type of the same model with the nearest memory.

    Args:
        name: a GPU type as somebody wrote it.
        known: the types to choose from; none: those of the cost model.

    Raises:
        ConfigError: no known type is of that model.
    """
    choices = list(known) or list(GPUS)
    wanted = canonical(name)
    for choice in choices:
        if canonical(choice) == wanted:
            return choice
    same = [choice for choice in choices if _model(choice) and _model(choice) == _model(name)]
    if not same:
        raise ConfigError(f"unknown GPU '{name}': valid: {', '.join(choices)}")
    memory = memory_gb(name)
    if memory is None:
        return same[0]
    return min(same, key=lambda choice: abs((memory_gb(choice) or 0.0) - memory))


def with_known_gpu(cluster: ClusterSpec) -> ClusterSpec:
    """Return a cluster whose GPU type is a key of the cost model, however it is spelled.

    Case, '-', '_', blanks and a final 'B' do not matter; another size of memory does, since
    a cluster's owner means one type.

    Raises:
        ConfigError: no known type is spelled like it.
    """
    key = next((key for key in GPUS if canonical(key) == canonical(cluster.gpu)), None)
    if key is None:
        same_chip = gpu_key(cluster.gpu)  # raises, with all types, for an unknown chip
        raise ConfigError(f"unknown GPU '{cluster.gpu}': did you mean '{same_chip}'?")
    return cluster if key == cluster.gpu else cluster.model_copy(update={"gpu": key})


def _model(name: str) -> str | None:
    """Return the chip of a GPU name, e.g. ``h100``."""
    found = [m.group() for part in re.split(r"[-_\s]+", name.lower()) if (m := _MODEL.match(part))]
    return found[0] if found else None
