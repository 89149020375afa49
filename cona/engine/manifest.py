"""A folder's manifest: whose state its files are, and what each of them must contain."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from cona.errors import DamageError, RunError

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Written last: a folder that has one is complete."""

    fingerprint: str
    """Identifies the model that the state belongs to."""
    files: dict[str, str]
    """SHA-256 of every other file, hexadecimal, by name."""
    format: int = FORMAT
    """Version of the folder's layout."""

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest itself, which its file carries too."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write it to a folder, and wait until both are on disk."""
        content = asdict(self) | {"sha256": self.digest}
        path = folder / NAME
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        sync(path)
        sync(folder)

    def check(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Read files of a folder and compare them.

        Args:
            folder: the folder.
            names: of the files that are read; None: all of them.

        Raises:
            DamageError: one is missing, or not what was written.
        """
        for name in sorted(self.files) if names is None else names:
            try:
                found = digest(folder / name)
            except OSError as error:
                raise DamageError(f"{folder}: damaged: {name}: {error.strerror}") from error
            if found != self.files[name]:
                raise DamageError(f"{folder}: damaged: {name} is not what was written")


def read_manifest(folder: Path) -> Manifest:
    """Return a folder's manifest.

    Raises:
        DamageError: there is none, or it is damaged.
        RunError: it is of another format.
    """
    try:
        content = json.loads((folder / NAME).read_bytes())
        written = content.pop("sha256")
        if (found := content["format"]) != FORMAT:
            raise RunError(f"{folder}: its {NAME} is of format {found}, read is format {FORMAT}")
        manifest = Manifest(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            f"{folder}: damaged, or no checkpoint: no {NAME} that is intact"
        ) from error
    if manifest.digest != written:
        raise DamageError(f"{folder}: damaged: {NAME} is not what was written")
    return manifest


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file's content or a folder's entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
