"""Writes docs/faults.md from the markers of the tests: `python tests/faults/fault_table.py`.

The tests' sources are read, not imported, so the table does not depend on what this machine has.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from known_faults import FAULTS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "faults.md"
HEAD = """\
# Faults

What may happen to a run, what must hold then, and the tests that play it, with real processes and
files. Written by `python tests/faults/fault_table.py` from the markers `fault` of the tests. A test
with several parameters counts once; *slow* tests are those of `make test-slow`.
"""


def marked(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (fault, test, whether it is slow) for the marked tests of a file.

    Args:
        path: a Python source.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    all_slow = any(_is_slow(node.value) for node in tree.body if isinstance(node, ast.Assign))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            is_slow = all_slow or any(map(_is_slow, node.decorator_list))
            for decorator in node.decorator_list:
                yield from ((fault, node.name, is_slow) for fault in _faults(decorator))


def _is_slow(node: ast.expr) -> bool:
    return ast.unparse(node) == "pytest.mark.slow"


def _faults(node: ast.expr) -> Iterator[str]:
    """Yield what the fault markers within a decorator name, parameters' own ones included."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "pytest.mark.fault":
            yield from (ast.literal_eval(argument) for argument in part.args)


def by_fault() -> dict[str, dict[str, list[str]]]:
    """Return the tests of each fault, by file; slow ones are named so."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for fault, name, is_slow in marked(path):
            where = path.relative_to(ROOT).as_posix()
            found[fault][where].append(f"{name} (slow)" if is_slow else name)
    return found


def page() -> str:
    """Return docs/faults.md."""
    tests = by_fault()
    numbers = {fault: sum(map(len, tests[fault].values())) for fault in FAULTS}
    rows = [
        f"| [{fault}](#{_anchor(fault)}) | {holds} | {numbers[fault]} |"
        for fault, holds in FAULTS.items()
    ]
    all_tests = {(path, name) for files in tests.values() for path in files for name in files[path]}
    table = ["| Fault | What must hold | Tests |", "|---|---|---|", *rows]
    total = f"{len(FAULTS)} faults, {len(all_tests)} tests; one test may play several faults."
    sections = [_section(fault, tests[fault]) for fault in FAULTS]
    return "\n".join([HEAD, *table, "", total, "", *sections])


def _section(fault: str, files: dict[str, list[str]]) -> str:
    lines = [f"- `{path}`: {', '.join(f'`{n}`' for n in names)}" for path, names in files.items()]
    return "\n".join([f"## {fault}", "", *lines, ""])


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
