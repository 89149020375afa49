"""Who made a result: versions, commit, machine, and the resolved configuration."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cona

if TYPE_CHECKING:
    from cona.setup import Setup

RECIPE_VERSION = 1
"""Raised when the code changes what training computes, so that old trajectories are not reused."""

METHOD_VERSION = 1
"""Raised when the code changes what a second costs or what a policy decides, so that finished runs
of older code are not taken for new ones."""

_CODE = ("cona", "baselines", "config", "workflow", "Snakefile")

_PACKAGES = ("torch", "megatron-core", "deepspeed", "numpy", "tokenizers", "mlflow", "snakemake")


def recipe_versions() -> dict[str, Any]:
    """Return the versions that can change a trajectory's numbers."""
    return {
        "recipe": RECIPE_VERSION,
        **{name: package_version(name) for name in ("torch", "megatron-core")},
    }


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the git commit of the checkout, `+dirty` if code or configuration differ from it.

    None outside a checkout.
    """
    folder = Path(cona.__file__).parent
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}+dirty" if _git(folder.parent, "status", "--porcelain", *_CODE) else head


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def run_facts(setup: Setup) -> dict[str, Any]:
    """Return the content of run.json: the resolved specifications and who made the run."""
    return {
        "run_key": setup.run_key,
        "config_hash": setup.config_hash,
        "commit": commit(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cona": cona.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: package_version(name) for name in _PACKAGES},
        "tier": setup.tier.model_dump(mode="json"),
        "model": setup.model.model_dump(mode="json"),
        "priced_model": setup.priced_model.model_dump(mode="json"),
        "cluster": setup.cluster.model_dump(mode="json"),
        "policy": setup.request.policy,
        "seed": setup.request.seed,
        "recipe": setup.recipe,
    }
