"""`cona replay` and `cona trace`: what a policy would do on recorded gradient noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cona import config
from cona.cli import names
from cona.cli.options import json_option, load_tier, parse_change
from cona.cli.terminal import say, say_json, working
from cona.specs import ClusterSpec, ModelSpec, TierSpec

if TYPE_CHECKING:
    from cona.replay.trace import Trace

DEFAULT_TIER = "quick"
BUDGET = "budget.iterations="


@click.command(short_help="The chain a policy would take on a recorded trace.")
@click.option("--trace", "trace_path", required=True, type=Path, help="CSV, or a run directory.")
@click.option(
    "--policy",
    required=True,
    shell_complete=names.policies,
    help="Policy; see `cona policies`.",
)
@click.option(
    "--model",
    required=True,
    shell_complete=names.models,
    help="Model; a proxy is priced as its full-size one.",
)
@click.option(
    "--cluster",
    shell_complete=names.clusters,
    help="Cluster like dgx-h100@512; default: the tier's.",
)
@click.option(
    "--tier",
    "tier_name",
    shell_complete=names.tiers,
    help=f"Tier, or a YAML file of one; default: the recorded run's, else {DEFAULT_TIER}.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the tier."
)
@json_option
def replay(
    trace_path: Path,
    policy: str,
    model: str,
    cluster: str | None,
    tier_name: str | None,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the stages that POLICY would go through on the gradient noise of a trace.

    Nothing is trained. A CSV has the columns samples,gns[,gns_se], all in samples: linear between
    rows, held beyond its ends; a budget that ends before it is lengthened. A recorded run (its
    directory, or its metrics.jsonl) shows the policy the very terms that the run saw.

    With --json: policy, model, priced_as, cluster, num_gpus, tier, clock, time_source, belief,
    switch_cost, rungs, time_budget_s, samples, train_s, notes, and stages.

    \b
    Examples:
      cona replay --trace gns.csv --policy cona --model gpt3-1.3b --cluster dgx-h100@512
      cona replay --trace results/quick/gpt3-1.3b-proxy/cona/seed0 --policy cona \\
          --model gpt3-1.3b-proxy --cluster a100x4-2node
    """
    from cona.cli import replay_text
    from cona.replay.replay import ReplayRequest
    from cona.replay.replay import replay as walk
    from cona.replay.trace_csv import read_trace

    config.load(ModelSpec, model)
    tier = resolved_tier(tier_name, trace_path, cluster, changes)
    trace = read_trace(trace_path)
    request = ReplayRequest(
        tier=tier, model=model, policy=policy, covers_trace=may_lengthen(trace, changes)
    )
    with working(f"replaying {policy}"):
        found = walk(request, trace)
    if as_json:
        click.echo(replay_text.as_json(found))
    else:
        say(replay_text.as_text(found))


@click.command(short_help="Write a run's gradient noise as a CSV for `cona replay`.")
@click.argument("run", metavar="RUN", type=Path)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@json_option
def trace(run: Path, out: Path, as_json: bool) -> None:
    """Write the GNS of RUN, a run directory or its metrics.jsonl, as samples,gns,gns_se.

    Iterations before the first estimate with an interval are left out.

    With --json: out, num_rows, num_iterations.

    \b
    Example:
      cona trace results/quick/gpt3-1.3b-proxy/cona/seed0 --out gns.csv
    """
    from cona.replay.trace import read_recording
    from cona.replay.trace_csv import write_csv

    recording = read_recording(run / "metrics.jsonl" if run.is_dir() else run)
    num_rows, num_iterations = write_csv(recording, out), len(recording.steps)
    if as_json:
        say_json({"out": str(out), "num_rows": num_rows, "num_iterations": num_iterations})
    else:
        say(f"{out}: {num_rows} rows of {num_iterations} iterations")


def may_lengthen(trace: Trace, changes: tuple[str, ...]) -> bool:
    """Return whether a budget may grow with the trace: not a run's own, nor one asked for."""
    from cona.replay.trace import GnsTrace

    return isinstance(trace, GnsTrace) and not any(c.startswith(BUDGET) for c in changes)


def resolved_tier(
    name: str | None, trace_path: Path, cluster: str | None, changes: tuple[str, ...]
) -> TierSpec:
    """Return the tier that was named, else the recorded run's, with cluster and changes put in.

    Raises:
        ConfigError: no such tier or cluster, or a change breaks a rule.
    """
    tier = recorded_tier(trace_path) if name is None else None
    tier = tier or load_tier(name or DEFAULT_TIER)
    values = dict(parse_change(change) for change in changes)
    if cluster:
        config.load(ClusterSpec, cluster)
        values["cluster"] = cluster
    return config.override(tier, values, where="--set") if values else tier


def recorded_tier(trace_path: Path) -> TierSpec | None:
    """Return the tier that a recorded run was made under; None for a CSV. Raises ConfigError."""
    from cona.runlog import read_json

    is_run = trace_path.is_dir() or trace_path.suffix == ".jsonl"
    facts = (trace_path if trace_path.is_dir() else trace_path.parent) / "run.json"
    if not (is_run and facts.is_file()):
        return None
    settings = read_json(facts).get("tier", {})
    return config.validate(TierSpec, settings, where=f"{facts} (or name a tier by --tier)")
