"""`cona policies`, `models`, `clusters`, `tiers` and `scales`: what exists, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from cona import config
from cona.cli.options import json_option
from cona.cli.terminal import say, say_json, table
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, TierSpec


def show(
    rows: Iterable[dict[str, Any]], as_json: bool, columns: tuple[str, ...] = ("name",)
) -> None:
    """Print rows, one line each: the columns, then the description; or JSON.

    Args:
        rows: what exists.
        as_json: print all that is known.
        columns: keys to show; where room is short, the last are left out first.
    """
    rows = list(rows)
    head = (*columns, "description")
    lines = [[row[column] for column in head] for row in rows]
    if as_json:
        say_json(rows)
    else:
        say(table(head, lines, drop=columns[:0:-1]))


@click.command(short_help="List the policies: what each decides, by which paper.")
@json_option
def policies(as_json: bool) -> None:
    """List the policies: kind, source with its year, and what each decides.

    With --json: a list of name, kind, description, source.

    \b
    Examples:
      cona policies
      cona policies --json | jq -r '.[] | select(.kind == "online") | .name'
    """
    from cona import registry

    show(
        (
            {"name": name, "kind": p.kind, "description": p.summary, "source": p.source}
            for name, p in registry.policies().items()
        ),
        as_json,
        columns=("name", "kind", "source"),
    )


@click.command(short_help="List the models: those to train, and their proxies.")
@json_option
def models(as_json: bool) -> None:
    """List the models.

    With --json: a list of all keys of their YAML files, and num_params.

    \b
    Examples:
      cona models
      cona models --json | jq '.[] | {name, num_params}'
    """
    specs = [config.load(ModelSpec, name) for name in config.names(ModelSpec)]
    show((s.model_dump(mode="json") | {"num_params": s.num_params} for s in specs), as_json)


@click.command(short_help="List the clusters that the clock can account for.")
@json_option
def clusters(as_json: bool) -> None:
    """List the clusters that the clock can account for; NAME@N is N nodes of one.

    With --json: a list of all keys of their YAML files, and num_gpus.

    \b
    Examples:
      cona clusters
      cona clusters --json
    """
    specs = [config.load(ClusterSpec, name) for name in config.names(ClusterSpec)]
    show((s.model_dump(mode="json") | {"num_gpus": s.num_gpus} for s in specs), as_json)


@click.command(short_help="List the tiers: sizes of the experiment.")
@json_option
def tiers(as_json: bool) -> None:
    """List the tiers: sizes of the experiment.

    With --json: a list of all keys of their YAML files, with the defaults of those left out.

    \b
    Examples:
      cona tiers
      cona tiers --json | jq '.[] | {name, policies}'
    """
    specs = [config.load(TierSpec, name) for name in config.names(TierSpec)]
    show((s.model_dump(mode="json") for s in specs), as_json)


@click.command(short_help="List the scales: what TIER@SCALE replaces in a tier.")
@json_option
def scales(as_json: bool) -> None:
    """List the scales: what `--tier paper@tiny` replaces in a tier.

    With --json: a list of all keys of their YAML files.

    \b
    Examples:
      cona scales
      cona scales --json
    """
    specs = [config.load(ScaleSpec, name) for name in config.names(ScaleSpec)]
    show((s.model_dump(mode="json") for s in specs), as_json)
