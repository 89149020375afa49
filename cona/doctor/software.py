"""Python and packages: are they those that the project asks for, and can they be imported?"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from cona.doctor.ask import Answers
from cona.doctor.finding import Finding, State
from cona.doctor.pins import Pin, pins, pythons

EXTRAS = {
    "bo": "cona-paper-search=bo",
    "gpu": "Transformer Engine's layers",
    "wikitext": "the corpus wikitext-103",
}
"""What each extra is for; that of developers is not looked at."""
IMPORT_DEEPSPEED = "import deepspeed; print(deepspeed.__version__)"
INSTALL = "make install, or pip install -e ."


def python(results: Path, answers: Answers) -> Iterator[Finding]:
    """Is this Python one that the project runs on?"""
    wanted, found = pythons(), platform.python_version()
    if wanted.contains(found, prereleases=True):
        yield Finding(name="python", state="ok", found=found)
    else:
        remedy = "make install finds Python 3.11 or 3.12, or takes PYTHON=python3.11"
        yield Finding(name="python", state="fail", found=f"{found}, not {wanted}", remedy=remedy)


def packages(results: Path, answers: Answers) -> Iterator[Finding]:
    """Are the packages installed that are always needed, in the versions that were asked for?"""
    needed = [pin for pin in pins() if pin.extra is None]
    missing = [pin for pin in needed if pin.installed is None]
    others = [pin for pin in needed if pin.installed and not pin.is_met]
    details = {pin.name: {"installed": pin.installed, "wanted": str(pin)} for pin in needed}
    state: State = "fail" if missing else "warn" if others else "ok"
    found = f"{len(needed)} packages in the versions asked for"
    if missing or others:
        words = [f"{pin} is missing" for pin in missing]
        found = "; ".join([*words, *(f"{pin.name} {pin.installed}, not {pin}" for pin in others)])
    remedy = "" if state == "ok" else INSTALL
    yield Finding(name="packages", state=state, found=found, remedy=remedy, details=details)


def extras(results: Path, answers: Answers) -> Iterator[Finding]:
    """Which extras are installed?"""
    known = pins()
    for extra, purpose in EXTRAS.items():
        yield _extra(extra, purpose, [pin for pin in known if pin.extra == extra])


def _extra(extra: str, purpose: str, wanted: list[Pin]) -> Finding:
    name, install = f"extra {extra}", f"pip install 'cona-bench[{extra}]'"
    missing = [pin for pin in wanted if pin.installed is None]
    if missing:
        found = f"{', '.join(pin.name for pin in missing)} not installed"
        return Finding(name=name, state="absent", found=found, remedy=f"for {purpose}: {install}")
    found = ", ".join(f"{pin.name} {pin.installed}" for pin in wanted)
    if all(pin.is_met for pin in wanted):
        return Finding(name=name, state="ok", found=found)
    asked = ", ".join(map(str, wanted))
    return Finding(name=name, state="warn", found=f"{found}, not {asked}", remedy=install)


def deepspeed(results: Path, answers: Answers) -> Iterator[Finding]:
    """Can DeepSpeed be imported?"""
    answer = answers("deepspeed")
    if answer is not None and answer.code == 0:
        yield Finding(name="deepspeed", state="ok", found=f"{answer.out.split()[-1]} imports")
        return
    reason = answer.reason if answer else "no Python"
    remedy = f"needed by engine.kind=deepspeed alone: {INSTALL}"
    yield Finding(name="deepspeed", state="fail", found=reason, remedy=remedy)
