"""`cona data` and `cona run`: prepare text, train policies."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cona import config
from cona.cli.options import data_option, load_tier, out_option, tier_option
from cona.interrupt import requeued
from cona.specs import ModelSpec

if TYPE_CHECKING:
    from cona.runner import RunRequest


@click.command()
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.")
@tier_option
@data_option
def data(models: tuple[str, ...], tier_name: str, corpus: str | None) -> None:
    """Prepare the corpora of a tier: text, tokenizers and tokens, cached."""
    tier = load_tier(tier_name, corpus)
    specs = [config.load(ModelSpec, model) for model in models or tier.models]
    from cona.data import prepare

    for spec in specs:
        prepared = prepare(tier.data.corpus, spec)
        sizes = ", ".join(f"{len(tokens)} {split}" for split, tokens in prepared.tokens.items())
        click.echo(f"{spec.name}: {tier.data.corpus}, tokens: {sizes}; {prepared.content_hash}")


@click.command(short_help="Train one model under one or more policies.")
@click.option("--model", required=True, help="Model; see `cona models`.")
@click.option("--policy", "policies", multiple=True, required=True, help="Policy; may be repeated.")
@click.option(
    "--seed", "seeds", multiple=True, type=int, default=[0], help="Seed; may be repeated."
)
@tier_option
@out_option
@data_option
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the tier."
)
@click.option("--dry-run", is_flag=True, help="Say what would be trained.")
@click.option("--quiet", is_flag=True, help="No progress bar, even on a terminal.")
def run(
    model: str,
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    tier_name: str,
    results: Path,
    corpus: str | None,
    changes: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train MODEL under each POLICY and SEED, one after the other.

    Finished runs are skipped, stopped ones continue where they were.

    \b
    Examples:
      cona run --model gpt3-1.3b-proxy --policy cona --seed 0 --tier quick --out try
      cona run --model gpt3-1.3b-proxy --policy rampup --set budget.iterations=50 --dry-run
    """
    from cona import registry
    from cona.runner import RunRequest

    tier = load_tier(tier_name, corpus, changes)
    config.load(ModelSpec, model)
    for policy in policies:
        registry.policy(policy)
    for policy, seed in product(policies, seeds):
        request = RunRequest(tier=tier, model=model, policy=policy, seed=seed, results=results)
        if dry_run:
            click.echo(f"{request.folder}: {plan(request)}")
        else:
            train(request, progress=not quiet and sys.stderr.isatty())


def plan(request: RunRequest) -> str:
    """Return in words what a run would do."""
    from cona.run_folder import finished
    from cona.setup import Setup

    path = request.folder / "result.json"
    if not path.exists():
        return "to be trained"
    if finished(path, Setup(request).run_key):
        return "finished: would be skipped"
    return "has a result of other settings or text: would be set aside, and trained anew"


def train(request: RunRequest, *, progress: bool) -> None:
    """Execute one run unless it is finished, and print one line about it."""
    from cona import runner

    before = written_ns(request.folder / "result.json")
    kept = superseded(request.folder)
    try:
        path = runner.run(request, progress=progress)
    except runner.Interrupted as stopped:
        raise requeued(stopped) from None
    for folder in sorted(superseded(request.folder) - kept):
        click.echo(f"{request.folder}: the result of other settings or text is kept in {folder}")
    result = json.loads(path.read_text(encoding="utf-8"))
    skipped = " (was finished: skipped)" if written_ns(path) == before else ""
    click.echo(f"{request.folder}: {describe(result)}{skipped}")


def superseded(folder: Path) -> set[Path]:
    """Return where results of other configurations of a run are kept."""
    return set((folder / "superseded").glob("*"))


def written_ns(path: Path) -> int | None:
    """Return when a file was written, in nanoseconds; None if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else None


def describe(result: dict[str, Any]) -> str:
    """Return a result in words: status, perplexity, modelled seconds and switches."""
    ppl = result["ppl"] and f"{result['perplexity_name']} {result['ppl']:.2f}"
    return (
        f"{result['status']}, {ppl or 'no perplexity'} after {result['train_s']:.0f} modelled s, "
        f"{result['samples']} samples, {result['num_switches']} switches"
    )
