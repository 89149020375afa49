"""Wrong configurations: mutations of the shipped YAML files, drawn by hypothesis."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]
"""Keys and indices from the top of a document to a value."""

HUGE = [2**60, 10**9, 10**12, 10**400, 2**20, 2**63, 1e300, 1e16, 3e38]
SMALL = [0, 1, 2, 3, -1, -(10**12), 0.0, -0.5, 0.5, 1e-9, 1e-40, 5e-324]
NO_NUMBERS = [float("nan"), float("inf"), float("-inf"), True, None, datetime.date(2026, 12, 1)]
WORDS = ["", " ", "x", "improved", "calculon", "table:nothing.csv", "a100-80g", "dgx-h100@64"]
ODD = [
    "../../etc/passwd",
    "a\nb",
    "\x00",
    "\u2028",
    "'; rm -rf / #",
    "$(reboot)",
    "%s{}",
    "é" * 300,
    "@" * 2000,
    "text:\x00",
    "1e400",
    "-",
    "x.yaml",
    "paper@tiny",
    "2026-13-45",
    "9" * 5000,
    "[" * 400,
]
CONTAINERS: list[Any] = [[], [1, 2], [[]], {}, {"a": {"b": 1}}, {1: 2}, {None: None}]

KINDS = ["delete", "replace", "key", "wrap", "policy", "policy"]
OFTEN = st.sampled_from([True, True, True, False])
WHOLE = st.one_of(
    st.sampled_from([2**60, 10**9, 10**12, 2**20, 2**17, 2**12, 2**40, 10**400, 0, -1]),
    st.integers(1, 64),
    st.integers(0, 20).map(lambda power: 2**power),
)
REAL = st.one_of(st.sampled_from([1e30, 1e-30, 1e16, 1e-9, 5e-324, 0.0, -1.0]), st.floats(0, 1e6))

any_value = st.one_of(
    st.sampled_from([*HUGE, *SMALL]),
    st.sampled_from([*NO_NUMBERS, *WORDS, *ODD]),
    st.sampled_from(CONTAINERS),
    st.integers(-10, 5000),
    st.floats(allow_nan=True),
    st.text(max_size=20),
)
garbage = st.one_of(
    st.sampled_from(["", "-", "=", "-gbs", "-gbs0", "-gbs64", "-gbs3", "-gbs-1", "-layout=fixed"]),
    st.sampled_from(["-eta0", "-eta1", "-c0", "-noise0", "-z1", "-cost=off", "-belief=nobody"]),
    st.sampled_from(["-gbs" + "9" * 60, "-c" + "9" * 400, "-lookahead9", "-memory=on", "-cost=2"]),
    st.sampled_from(["-iterations0", "-tolerance" + "9" * 320, "-eta0." + "0" * 80 + "1"]),
    st.text(max_size=12),
)


def paths(value: Any, here: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*here, key)
        if isinstance(inner, dict | list):
            yield from paths(inner, (*here, key))


def parent_of(document: Any, path: Path) -> Any:
    """Return the mapping or list that holds the value at a path."""
    for key in path[:-1]:
        document = document[key]
    return document


@st.composite
def mutants(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw a document with one to three mutations, mostly one: others may hide what it does."""
    mutant = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2, 3]))):
        places = list(paths(mutant))
        numbers = [path for path in places if is_number(parent_of(mutant, path)[path[-1]])]
        if places:  # numbers more often: what they can break lies deeper than a wrong type
            chosen = numbers if numbers and draw(OFTEN) else places
            mutate(draw, mutant, draw(st.sampled_from(chosen)))
    return mutant


def is_number(value: Any) -> bool:
    """Return whether a value is a number that can be multiplied."""
    return isinstance(value, int | float) and abs(value) < 1e30


def mutate(draw: st.DrawFn, document: dict[str, Any], path: Path) -> None:
    """Change what stands at a path: delete, misspell, replace, scale, wrap it or add to it."""
    holder, key = parent_of(document, path), path[-1]
    value = holder[key]
    kind = draw(st.sampled_from(["scale", "number"] if is_number(value) and draw(OFTEN) else KINDS))
    if kind == "delete":
        del holder[key]
    elif kind == "scale":
        new = value * draw(st.sampled_from([0.5, 2, 3, 4, 16, 64, 1000, 1e-3, 10**6, 2**20, 1e-15]))
        holder[key] = max(1, int(new)) if isinstance(value, int) else new
    elif kind == "number":
        holder[key] = draw(WHOLE if isinstance(value, int) else REAL)
    elif kind == "key" and isinstance(holder, dict):
        holder[draw(st.sampled_from([f"{key}s", "Name", "", "ladder", "techniques"]))] = value
    elif kind == "wrap":
        holder[key] = draw(st.sampled_from([[value], {"value": value}, str(value)]))
    elif kind == "policy" and isinstance(document.get("policies"), list) and document["policies"]:
        index = draw(st.integers(0, len(document["policies"]) - 1))
        document["policies"][index] = f"{document['policies'][index]}{draw(garbage)}"
    else:
        holder[key] = copy.deepcopy(draw(any_value))  # a later mutation may change it


@st.composite
def texts(draw: st.DrawFn, text: str) -> str:
    """Draw a file's text with a piece cut out or put in anywhere."""
    start = draw(st.integers(0, len(text)))
    piece = draw(st.sampled_from(["", ":", "- ", "\t", "\n", "{", "&a [*a]", "!!python/x", "\x07"]))
    return text[:start] + piece + text[start + draw(st.integers(0, 20)) :]
