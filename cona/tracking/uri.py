"""Which store a tracking URI names, and how it may be shown to people."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cona.config import content_hash
from cona.errors import ConfigError

VARIABLE = "MLFLOW_TRACKING_URI"
"""Environment variable that names another store than the default."""
DEFAULT = "sqlite:///mlflow.db"
_SQLITE = "sqlite:///"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def chosen() -> str:
    """Return the store that the environment names, or the default."""
    return os.environ.get(VARIABLE) or DEFAULT


def check(uri: str) -> None:
    """Raise ConfigError unless MLflow can write to such a store."""
    scheme = uri.partition(":")[0] if ":" in uri else ""
    if scheme not in _SCHEMES or (scheme == "sqlite" and database(uri) is None):
        raise ConfigError(
            f"tracking URI '{shown(uri)}': not a database or a server; valid: {DEFAULT}, "
            "or http://host:port of an MLflow server"
        )


def database(uri: str) -> Path | None:
    """Return the file of a SQLite store; None: the store is something else."""
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(_SQLITE) and path else None


def sqlite(path: Path) -> str:
    """Return the tracking URI of a SQLite store in a file."""
    return f"{_SQLITE}{path}"


def missing_database() -> list[str]:
    """Return the file of the chosen store where an import would create it, for Snakemake."""
    path = database(chosen())
    return [] if path is None or path.exists() else [str(path)]


def key() -> str:
    """Return what tells the chosen store from others: without its password, for Snakemake's log."""
    return content_hash(chosen())


def shown(text: str) -> str:
    """Return a URI, or a text with URIs, without passwords."""
    return re.sub(r"//[^/\s]*@", "//***@", text)
