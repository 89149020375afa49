"""`cona data`: prepare text."""

from __future__ import annotations

from typing import Any

import click

from cona import config
from cona.cli import names
from cona.cli.options import data_option, json_option, load_tier, tier_option
from cona.cli.terminal import say, say_json, steps
from cona.specs import ModelSpec


@click.command(short_help="Prepare the texts of a tier: tokenizers and tokens, cached.")
@click.option(
    "--model",
    "models",
    multiple=True,
    shell_complete=names.models,
    help="Only this model; may be repeated.",
)
@tier_option
@data_option
@json_option
def data(models: tuple[str, ...], tier_name: str, corpus: str | None, as_json: bool) -> None:
    """Prepare the corpora of a tier: text, tokenizers and tokens, cached.

    Runs do so by themselves; beforehand it is for nodes that should not, or are offline.

    With --json: a list of model, corpus, tokens (of each split) and content_hash.

    \b
    Examples:
      cona data --tier quick
      cona data --tier paper --data wikitext-103
      cona data --model bert-large-proxy --data text:my-folder --json
    """
    tier = load_tier(tier_name, corpus)
    specs = [config.load(ModelSpec, model) for model in models or tier.models]
    from cona.data import prepare

    rows: list[dict[str, Any]] = []
    for spec in steps(specs, "preparing texts"):
        prepared = prepare(tier.data.corpus, spec)
        tokens = {split: len(stream) for split, stream in prepared.tokens.items()}
        facts = {"corpus": tier.data.corpus, "tokens": tokens}
        rows.append({"model": spec.name, **facts, "content_hash": prepared.content_hash})
    if as_json:
        say_json(rows)
        return
    for row in rows:
        sizes = ", ".join(f"{count} {split}" for split, count in row["tokens"].items())
        say(f"{row['model']}: {row['corpus']}, tokens: {sizes}; {row['content_hash']}")
