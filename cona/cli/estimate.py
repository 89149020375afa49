"""`cona estimate`: what a tier takes on a cluster, before anyone submits it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from cona.cli import names
from cona.cli.options import for_real_ranks, json_option, load_tier, tier_option
from cona.cli.terminal import say, steps
from cona.pipeline import Pipeline, with_scale


@click.command(short_help="Say what a tier takes: jobs, GPU-hours, disk, memory.")
@tier_option
@click.option(
    "--scale",
    shell_complete=names.scales,
    help="Scale of the tier; the same as --tier TIER@SCALE.",
)
@click.option(
    "--cluster",
    shell_complete=names.clusters,
    help="Cluster instead of the tier's, or a YAML file of one.",
)
@json_option
def estimate(tier_name: str, scale: str | None, cluster: str | None, as_json: bool) -> None:
    """Say what a TIER takes on a CLUSTER, without training anything.

    Seconds are modelled, and figures are upper ones: what a policy does is not known beforehand.

    With --json: tier, cluster, clock, seconds_are, num_jobs, num_runs, gpu_hours, host_hours,
    disk_bytes, peak_disk_bytes, models, and assumed.

    \b
    Examples:
      cona estimate --tier paper
      cona estimate --tier paper --cluster dgx-h100 --json
      cona estimate --tier paper --scale tiny
    """
    from cona.cli import estimate_text
    from cona.estimate import estimate as answer

    changes = [f"cluster={cluster}"] if cluster else []
    spec = with_scale(tier_name, scale)
    tier = load_tier(spec, changes=changes)
    if tier.clock.kind == "measured":
        tier, _ = for_real_ranks(tier, ())
    pipeline = Pipeline(tier=tier, spec=spec, results="results")
    cost = answer(pipeline, _progress)
    if as_json:
        click.echo(estimate_text.as_json(cost))
    else:
        say(estimate_text.as_text(cost))


def _progress(models: Sequence[str]) -> Iterable[str]:
    """Show on a terminal how many models are done: an oracle's forks take seconds to count."""
    return steps(models, "estimating")
