"""Order and groups of runs, the same in every table and figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

METHOD = "cona"
"""The method whose claims are judged: CONA with this project's improvements."""
ORACLE = "greedy-oracle"
"""Name of the oracle; its variants have parameters after it."""
_FIXED = re.compile(r"fixed-best-gbs(\d+)")
BOUND = "bound"
"""Kind of the policies that may do what no method can: train ahead at no cost on the clock."""
_KIND_ORDER = ("online", "ablation", "schedule", "offline", BOUND)
_PARAMETER = re.compile(r"[=\d]")
_AFTER_ALL_SIZES = 10**9


class Labelled(Protocol):
    """Anything that belongs to a model and a policy."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def policy(self) -> str:
        """Name of the policy with its parameters."""


T = TypeVar("T")
LabelledT = TypeVar("LabelledT", bound=Labelled)


def fixed_gbs(policy: str) -> int | None:
    """Return the global batch size of a `fixed-best-gbs<N>` policy, None for any other."""
    match = _FIXED.fullmatch(policy)
    return int(match[1]) if match else None


def is_oracle(policy: str) -> bool:
    """Return whether a policy is the oracle or one of its variants."""
    return policy == ORACLE or policy.startswith(f"{ORACLE}-")


def marked(policy: str, kind: str) -> str:
    """Return a policy's name, marked where it is a bound and no method."""
    return f"{policy} (bound)" if kind == BOUND else policy


def has_parameter(policy: str) -> bool:
    """Return whether a name carries a value, as variants and planners at one batch size do."""
    return bool(_PARAMETER.search(policy))


def order(policy: str, kind: str) -> tuple[int, int, str]:
    """Return the sort key that puts policies in the same order in every table and figure.

    `cona` is the first; then kind by kind, plain names before those with a parameter, and fixed
    batch sizes from small to large before the planners.
    """
    rank = _KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER)
    size = fixed_gbs(policy) or (_AFTER_ALL_SIZES if has_parameter(policy) else 0)
    return -1 if policy == METHOD else rank, size, policy


def unique(values: Iterable[T]) -> list[T]:
    """Return the values without repetitions, in order of first appearance."""
    return list(dict.fromkeys(values))


def by_model(runs: Sequence[LabelledT]) -> dict[str, list[LabelledT]]:
    """Return the runs grouped by model, in their order."""
    return {m: [r for r in runs if r.model == m] for m in unique(r.model for r in runs)}


def by_policy(runs: Sequence[LabelledT]) -> dict[str, list[LabelledT]]:
    """Return the runs grouped by policy, in their order."""
    return {p: [r for r in runs if r.policy == p] for p in unique(r.policy for r in runs)}
