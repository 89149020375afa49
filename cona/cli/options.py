"""Options that several commands share, and the tier that they describe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml

from cona import config
from cona.cli import names
from cona.engine.factory import lacking
from cona.errors import ConfigError, shown
from cona.specs import TierSpec

tier_option = click.option(
    "--tier",
    "tier_name",
    default="quick",
    show_default=True,
    shell_complete=names.tiers,
    help="Tier, tier@scale like paper@tiny, or a YAML file of one.",
)
out_option = click.option(
    "--out",
    "results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Results root; runs are in <out>/<tier>/<model>/<policy>/seed<k>/.",
)
data_option = click.option(
    "--data",
    "corpus",
    metavar="CORPUS",
    help="stdlib, wikitext-103, wikitext:<folder> or text:<path>; default: the tier's.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def load_tier(name: str, corpus: str | None = None, changes: Iterable[str] = ()) -> TierSpec:
    """Return a tier with the changes of the command line.

    Raises:
        ConfigError: no such tier, or a change is not KEY=VALUE or breaks a rule.
    """
    values = dict(parse_change(change) for change in changes)
    if corpus:
        values["data.corpus"] = corpus
    tier = config.load(TierSpec, name)
    return config.override(tier, values, where="--set") if values else tier


def for_real_ranks(tier: TierSpec, changes: Iterable[str]) -> tuple[TierSpec, list[str]]:
    """Return a tier without techniques that its engine lacks, and what to tell about that.

    Args:
        tier: a tier on the measured clock.
        changes: KEY=VALUE of the command line; what was asked for there stays, to be refused.
    """
    asked = {parse_change(change)[0] for change in changes}
    values = {f"techniques.{k}": v for k, v in lacking(tier.engine, tier.techniques).items()}
    values = {key: value for key, value in values.items() if key not in asked}
    told = [
        f"{key} is set to {v}: the nearest that the tier's engine, {tier.engine.kind}, has"
        for key, v in values.items()
    ]
    return (config.override(tier, values) if values else tier), told


def parse_change(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE; the value is read as YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--set {shown(text)}: expected KEY=VALUE like budget.iterations=50")
    try:
        return key, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no such date
        raise ConfigError(f"--set {key}: {shown(value)} is not a YAML value") from error
