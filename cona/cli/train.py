"""`cona run`: train policies."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from cona import config, launch, rank
from cona.cli import names
from cona.cli.group import Grouped
from cona.cli.options import (
    data_option,
    for_real_ranks,
    load_tier,
    out_option,
    tier_option,
)
from cona.errors import ConfigError
from cona.interrupt import requeued
from cona.lock import outwait
from cona.specs import ClockKind, ClusterSpec, TierSpec

if TYPE_CHECKING:
    from cona.engine.ranks import Leader
    from cona.runner import RunRequest


GROUPS = {
    "What is trained": ("model", "policies", "seeds", "tier_name", "corpus", "changes"),
    "Real ranks": ("clock", "nproc"),
    "Where, and what is said": ("results", "wait", "dry_run", "quiet"),
}


@click.command(cls=Grouped, groups=GROUPS, short_help="Train one model under one or more policies.")
@click.option(
    "--model", required=True, shell_complete=names.models, help="Model; see `cona models`."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    required=True,
    shell_complete=names.policies,
    help="Policy; may be repeated.",
)
@click.option(
    "--seed", "seeds", multiple=True, type=int, default=[0], help="Seed; may be repeated."
)
@tier_option
@out_option
@data_option
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the tier."
)
@click.option(
    "--clock",
    type=click.Choice(get_args(ClockKind)),
    help="Seconds of a target cluster, or of real ranks; default: the tier's.",
)
@click.option(
    "--nproc",
    type=click.IntRange(min=1),
    help="Measured clock: ranks on this machine; default: the GPUs of the tier's cluster.",
)
@click.option(
    "--wait", is_flag=True, help="If another process works on a run, wait for it instead of ending."
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
    clock: ClockKind | None,
    nproc: int | None,
    wait: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train MODEL under each POLICY and SEED, one after the other.

    Finished runs are skipped, stopped ones continue where they were. What a program wants to know
    of a run is in its result.json.

    \b
    Examples:
      cona run --model gpt3-1.3b-proxy --policy cona --seed 0 --tier quick --out try
      cona run --model gpt3-1.3b-proxy --policy rampup --set budget.iterations=50 --dry-run
      cona run --model gpt3-1.3b-proxy --policy cona --clock measured --nproc 4 \\
          --set cluster=local-cpu@4 --set budget.seconds=120 --out measured
    """
    from cona import registry
    from cona.runner import RunRequest
    from cona.scene import Scene

    tier = load_tier(tier_name, corpus, (*changes, *([f"clock.kind={clock}"] if clock else [])))
    if tier.clock.kind == "measured":
        tier = measured_tier(tier, changes, nproc)
    elif nproc:
        raise ConfigError(
            f"--nproc {nproc}: the modelled clock needs no ranks; add --clock measured"
        )
    scene = Scene.of(tier, model)
    for policy in policies:
        scene.with_engine_of(registry.policy(policy))
    requests = [
        RunRequest(tier=tier, model=model, policy=policy, seed=seed, results=results)
        for policy, seed in product(policies, seeds)
    ]
    if dry_run:
        for request in requests:
            click.echo(f"{request.folder}: {plan(request)}")
    else:
        execute(requests, progress=not quiet and sys.stderr.isatty(), wait=wait)


def measured_tier(tier: TierSpec, changes: tuple[str, ...], nproc: int | None) -> TierSpec:
    """Return a tier that real ranks can execute; the launcher says what was changed.

    Raises:
        ConfigError: the tier's cluster has another number of GPUs than there are ranks.
    """
    tier, told = for_real_ranks(tier, changes)
    is_rank = rank.is_rank()
    num_gpus = config.load(ClusterSpec, tier.cluster).num_gpus
    num_ranks = rank.num_ranks() if is_rank else nproc or num_gpus
    if num_ranks != num_gpus:
        raise ConfigError(
            f"{num_ranks} ranks, but cluster '{tier.cluster}' has {num_gpus} GPUs; "
            f"nearest: --nproc {num_gpus}, or --set cluster=local-cpu@{num_ranks}"
        )
    for line in () if is_rank else told:
        click.echo(line, err=True)
    return tier


def execute(requests: list[RunRequest], *, progress: bool, wait: bool) -> None:
    """Train one run after the other: in this process, or on ranks that do so together."""

    def all_of_them(ranks: Leader | None = None) -> None:
        for request in requests:
            train(replace(request, ranks=ranks), progress=progress, wait=wait)

    tier = requests[0].tier
    if tier.clock.kind == "modelled":
        all_of_them()
    elif rank.is_rank():
        rank.join(all_of_them)
    elif all([is_finished(request) for request in requests]):  # noqa: C419 - what is wrong, is said
        all_of_them()
    else:
        num_gpus = config.load(ClusterSpec, tier.cluster).num_gpus
        launch.start(num_gpus, tier.engine, tier.techniques)


def is_finished(request: RunRequest) -> bool:
    """Return whether a run has its result; raises what is wrong with the request, if anything."""
    from cona.run_folder import finished
    from cona.setup import Setup

    return finished(request.folder / "result.json", Setup(request).run_key)


def plan(request: RunRequest) -> str:
    """Return in words what a run would do."""
    from cona.run_folder import damage

    if not (path := request.folder / "result.json").exists():
        return f"to be trained, for {budget(request)}"
    if found := damage(path):
        return f"{found}; would be repeated"
    if is_finished(request):
        return "finished: would be skipped"
    return "has a result of other settings or text: would be set aside, and trained anew"


def budget(request: RunRequest) -> str:
    """Return in words how long a run would be."""
    from cona import registry
    from cona.scene import Scene

    scene = Scene.of(request.tier, request.model)
    scene = scene.with_engine_of(registry.policy(request.policy))
    return f"{scene.time_budget_s:,.1f} {unit(scene.tier.clock.kind)}"


def unit(clock: ClockKind | None) -> str:
    """Return what a clock counts."""
    return "s" if clock == "measured" else "modelled s"


def train(request: RunRequest, *, progress: bool, wait: bool) -> None:
    """Execute one run unless it is finished, and print one line about it."""
    from cona import runner

    def say(line: str) -> None:
        click.echo(f"{request.folder}: {line}")

    try:
        if wait:
            outwait(request.folder, say)
        before = written_ns(request.folder / "result.json")
        kept = superseded(request.folder)
        path = runner.run(request, progress=progress, say=say)
    except runner.Interrupted as stopped:
        raise requeued(stopped) from None
    for folder in sorted(superseded(request.folder) - kept):
        say(f"the result of other settings or text is kept in {folder}")
    result = json.loads(path.read_text(encoding="utf-8"))
    skipped = " (was finished: skipped)" if written_ns(path) == before else ""
    say(f"{describe(result)}{skipped}")


def superseded(folder: Path) -> set[Path]:
    """Return where results of other configurations of a run are kept."""
    return set((folder / "superseded").glob("*"))


def written_ns(path: Path) -> int | None:
    """Return when a file was written, in nanoseconds; None if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else None


def describe(result: dict[str, Any]) -> str:
    """Return a result in words: status, perplexity, seconds and switches."""
    seconds = unit(result.get("clock", {}).get("kind"))
    ppl = result["ppl"] and f"{result['perplexity_name']} {result['ppl']:.2f}"
    return (
        f"{result['status']}, {ppl or 'no perplexity'} after {result['train_s']:.0f} {seconds}, "
        f"{result['samples']} samples, {result['num_switches']} switches"
    )
