"""Which packages the project asks for, and in which versions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import cona
from cona.provenance import package_version

DISTRIBUTION = "cona-bench"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A package that the project asks for."""

    requirement: Requirement
    extra: str | None
    """The extra that it belongs to; None: it is always needed."""

    @property
    def name(self) -> str:
        """The package's name."""
        return self.requirement.name

    @property
    def installed(self) -> str | None:
        """The version that is installed; None: it is not."""
        return package_version(self.name)

    @property
    def is_met(self) -> bool:
        """Whether a version is installed that the project asks for."""
        found = self.installed
        return found is not None and self.requirement.specifier.contains(
            Version(found), prereleases=True
        )

    def __str__(self) -> str:
        return f"{self.name} {self.requirement.specifier}".strip()


def pythons() -> SpecifierSet:
    """Return the versions of Python that the project runs on."""
    if checkout := _checkout():
        return SpecifierSet(checkout["requires-python"])
    return SpecifierSet(metadata(DISTRIBUTION)["Requires-Python"])


def pins() -> list[Pin]:
    """Return what the project asks for, sorted by name."""
    found = _of_checkout(checkout) if (checkout := _checkout()) else _of_wheel()
    return sorted(found, key=lambda pin: pin.name.lower())


def _checkout() -> dict:
    """Return the project's table of pyproject.toml: an editable install knows an older one."""
    path = Path(cona.__file__).parents[1] / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    return project if project.get("name") == DISTRIBUTION else {}


def _of_checkout(project: dict) -> Iterator[Pin]:
    for text in project["dependencies"]:
        yield Pin(requirement=Requirement(text), extra=None)
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            yield Pin(requirement=Requirement(text), extra=extra)


def _of_wheel() -> Iterator[Pin]:
    facts = metadata(DISTRIBUTION)
    extras = facts.get_all("Provides-Extra") or []
    for requirement in map(Requirement, facts.get_all("Requires-Dist") or []):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield Pin(requirement=requirement, extra=None)
        else:
            for extra in extras:
                if marker.evaluate({"extra": extra}):
                    yield Pin(requirement=requirement, extra=extra)
