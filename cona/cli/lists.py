"""`cona policies`, `models`, `clusters` and `tiers`: what exists, one line each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from cona import config
from cona.specs import ClusterSpec, ModelSpec, TierSpec

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show(
    rows: Iterable[dict[str, Any]], as_json: bool, columns: tuple[str, ...] = ("name",)
) -> None:
    """Print rows, one line each: the columns, aligned, then the description; or JSON."""
    rows = list(rows)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    widths = {column: max((len(row[column]) for row in rows), default=0) for column in columns}
    for row in rows:
        cells = [f"{row[column]:<{width}}" for column, width in widths.items()]
        click.echo("  ".join([*cells, row["description"]]))


@click.command()
@json_option
def policies(as_json: bool) -> None:
    """List the policies: kind, source with its year, and what each decides."""
    from cona import registry

    show(
        (
            {"name": name, "kind": p.kind, "description": p.summary, "source": p.source}
            for name, p in registry.policies().items()
        ),
        as_json,
        columns=("name", "kind", "source"),
    )


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the models."""
    specs = [config.load(ModelSpec, name) for name in config.names(ModelSpec)]
    show((s.model_dump(mode="json") | {"num_params": s.num_params} for s in specs), as_json)


@click.command()
@json_option
def clusters(as_json: bool) -> None:
    """List the clusters that the clock can account for."""
    specs = [config.load(ClusterSpec, name) for name in config.names(ClusterSpec)]
    show((s.model_dump(mode="json") | {"num_gpus": s.num_gpus} for s in specs), as_json)


@click.command()
@json_option
def tiers(as_json: bool) -> None:
    """List the tiers: sizes of the experiment."""
    specs = [config.load(TierSpec, name) for name in config.names(TierSpec)]
    show((s.model_dump(mode="json") for s in specs), as_json)
