"""`cona plan`: the fastest strategies of a model on a cluster, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cona.cli import names
from cona.cli.group import Grouped
from cona.cli.options import json_option
from cona.specs import LARGEST_GBS

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
COUNT = click.IntRange(min=1, max=LARGEST_GBS)
TECHNIQUES = (
    click.option("--zero", type=int, multiple=True, default=[0], help="ZeRO stage, 0 to 3."),
    click.option("--recompute", multiple=True, default=["none"], help="none, selective or full."),
    click.option("--sequence-parallel", is_flag=True, help="Shard norms and dropout over tp."),
    click.option("--virtual-stages", type=int, multiple=True, default=[1], help="Interleaving."),
    click.option("--context-parallel", type=int, multiple=True, default=[1], help="Split samples."),
)

PLANNERS = (
    click.option(
        "--planner",
        shell_complete=names.planners,
        help="Ask this baseline, or all of them, instead of searching.",
    ),
    click.option(
        "--profile",
        type=click.Path(path_type=Path),
        help="Folder of layers.csv and profile.yaml; replaces --model and --cluster.",
    ),
    click.option("--gpus", "num_gpus", type=COUNT, help="GPUs, with --profile."),
    click.option("--all-plans", is_flag=True, help="Show every plan that a planner evaluated."),
)
PLANNER_OPTIONS = ("planner", "profile", "num_gpus", "all_plans")


def with_planners(command: CommandT) -> CommandT:
    """Add the options of planners."""
    for option in reversed(PLANNERS):
        command = option(command)
    return command


def with_techniques(command: CommandT) -> CommandT:
    """Add the options of the techniques; one that is repeated is searched over."""
    for option in reversed(TECHNIQUES):
        command = option(command)
    return command


GROUPS = {
    "What is planned": ("model", "cluster", "gbs", "ladder", "gbs_max", "seq", "mbs_max", "preset"),
    "Techniques; one that is repeated is searched over": (
        "zero",
        "recompute",
        "sequence_parallel",
        "virtual_stages",
        "context_parallel",
    ),
    "Published planners": PLANNER_OPTIONS,
    "Answer": ("top", "as_json", "trainer", "figure"),
}


@click.command(
    cls=Grouped, groups=GROUPS, short_help="Rank the strategies of a model on a cluster."
)
@click.option(
    "--model",
    shell_complete=names.models,
    help="Model, YAML file, or a Hugging Face config.json.",
)
@click.option(
    "--cluster",
    shell_complete=names.clusters,
    help="Cluster like dgx-h100@4, or a YAML file of one.",
)
@click.option(
    "--gbs",
    type=COUNT,
    help="Global batch size, samples; with --ladder the least, default: 8, or the next that fits "
    "the GPUs.",
)
@click.option("--ladder", is_flag=True, help="The best layout of every gbs instead.")
@click.option("--gbs-max", type=COUNT, help="Last of --ladder; default: 32 times the least.")
@click.option("--seq", type=COUNT, help="Tokens per sample; default: the model's.")
@click.option("--mbs-max", type=COUNT, default=32, show_default=True, help="Largest micro-batch.")
@with_techniques
@click.option(
    "--preset", shell_complete=names.presets, help="Cost model; default: the best there is."
)
@click.option("--top", type=COUNT, default=10, show_default=True, help="How many to show.")
@json_option
@click.option(
    "--emit",
    "trainer",
    shell_complete=names.trainers,
    help="Print the best one for megatron, deepspeed, torchtitan.",
)
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a file.")
@with_planners
def plan(**options: Any) -> None:
    """Rank the strategies of MODEL on CLUSTER by modelled time; no GPU is needed.

    ZeRO, recomputation, sequence parallelism, interleaving and context parallelism are off unless
    asked for; an option that is given more than once is searched over.

    With --json: model, seq_length, cluster, num_gpus, preset, calibrated, clock, and rungs; with
    --planner: planners, and what is true of their plans. Seconds, bytes, samples.

    \b
    Examples:
      cona plan --model gpt3-1.3b --cluster a100x4-2node --gbs 64
      cona plan --model gpt3-1.3b --cluster dgx-h100@4 --ladder --zero 0 --zero 1
      cona plan --model llama/config.json --seq 4096 --cluster dgx-a100 --gbs 64 --zero 1 \\
          --recompute none --recompute full --emit megatron
      cona plan --planner all --model llama-3.2-1b --cluster a100x4-2node --gbs 64
      cona plan --planner metis --profile DIR --gpus 8 --gbs 128 --json --all-plans
    """
    from cona.cli import plan_answer

    refuse_silent(click.get_current_context(), options)
    own = {name: options.pop(name) for name in PLANNER_OPTIONS}
    request = plan_answer.Request(**options)
    if own["planner"]:
        from cona.cli import plan_planner

        plan_planner.answer(plan_planner.PlannerRequest(plan=request, **own))
    else:
        plan_answer.answer(request)


def refuse_silent(context: click.Context, options: dict[str, Any]) -> None:
    """Raise UsageError for an option that another one leaves without effect."""

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    refuse_planner_silent(options, is_given)
    if options["ladder"] and is_given("top"):
        raise click.UsageError("--top has no effect with --ladder, which shows one of every gbs")
    if is_given("gbs_max") and not options["ladder"]:
        raise click.UsageError("--gbs-max is the last batch of --ladder: add --ladder, or leave it")
    if options["as_json"] and options["trainer"]:
        raise click.UsageError("--json and --emit both print the answer: give one of them")


def refuse_planner_silent(options: dict[str, Any], is_given: Callable[[str], bool]) -> None:
    """Raise UsageError for an option that planners need, or that has no effect on them."""
    if not options["planner"]:
        for name, flag in (
            ("profile", "profile"),
            ("num_gpus", "gpus"),
            ("all_plans", "all-plans"),
        ):
            if is_given(name):
                raise click.UsageError(f"--{flag} is for planners: add --planner, or leave it")
    for name, flag in (("top", "top"), ("trainer", "emit"), ("figure", "figure")):
        if options["planner"] and is_given(name):
            raise click.UsageError(f"--{flag} has no effect with --planner, which prints a report")
    if options["profile"]:
        for name in ("model", "cluster", "preset", "seq"):
            if is_given(name):
                raise click.UsageError(f"--{name} has no effect with --profile, which brings it")
        return
    if is_given("num_gpus"):
        raise click.UsageError("--gpus is for --profile; a cluster has its own, e.g. dgx-a100@2")
    for name in ("model", "cluster"):
        if not options[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
