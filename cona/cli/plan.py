"""`cona plan`: the fastest strategies of a model on a cluster, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)
TECHNIQUES = (
    click.option("--zero", type=int, multiple=True, default=[0], help="ZeRO stage, 0 to 3."),
    click.option("--recompute", multiple=True, default=["none"], help="none, selective or full."),
    click.option("--sequence-parallel", is_flag=True, help="Shard norms and dropout over tp."),
    click.option("--virtual-stages", type=int, multiple=True, default=[1], help="Interleaving."),
    click.option("--context-parallel", type=int, multiple=True, default=[1], help="Split samples."),
)


def with_techniques(command: CommandT) -> CommandT:
    """Add the options of the techniques; one that is repeated is searched over."""
    for option in reversed(TECHNIQUES):
        command = option(command)
    return command


@click.command(short_help="Rank the strategies of a model on a cluster.")
@click.option("--model", required=True, help="Model, YAML file, or a Hugging Face config.json.")
@click.option("--cluster", required=True, help="Cluster like dgx-h100@4, or a YAML file of one.")
@click.option("--gbs", type=COUNT, help="Global batch size, samples; with --ladder the least.")
@click.option("--ladder", is_flag=True, help="The best layout of every gbs instead.")
@click.option("--gbs-max", type=COUNT, default=256, show_default=True, help="Last of --ladder.")
@click.option("--seq", type=COUNT, help="Tokens per sample; default: the model's.")
@click.option("--mbs-max", type=COUNT, default=32, show_default=True, help="Largest micro-batch.")
@with_techniques
@click.option("--preset", help="Cost model; default: the best there is.")
@click.option("--top", type=COUNT, default=10, show_default=True, help="How many to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--emit", "trainer", help="Print the best one for megatron, deepspeed, torchtitan.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a file.")
def plan(**options: Any) -> None:
    """Rank the strategies of MODEL on CLUSTER by modelled time; no GPU is needed.

    ZeRO, recomputation, sequence parallelism, interleaving and context parallelism are off unless
    asked for; an option that is given more than once is searched over.

    \b
    Examples:
      cona plan --model gpt3-1.3b --cluster a100x4-2node --gbs 64
      cona plan --model gpt3-1.3b --cluster dgx-h100@4 --ladder --zero 0 --zero 1
      cona plan --model llama/config.json --seq 4096 --cluster dgx-a100 --gbs 64 --zero 1 \\
          --recompute none --recompute full --emit megatron
    """
    from cona.cli.plan_answer import Request, answer

    refuse_silent(click.get_current_context(), options)
    answer(Request(**options))


def refuse_silent(context: click.Context, options: dict[str, Any]) -> None:
    """Raise UsageError for an option that another one leaves without effect."""

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    if options["ladder"] and is_given("top"):
        raise click.UsageError("--top has no effect with --ladder, which shows one of every gbs")
    if is_given("gbs_max") and not options["ladder"]:
        raise click.UsageError("--gbs-max is the last batch of --ladder: add --ladder, or leave it")
    if options["as_json"] and options["trainer"]:
        raise click.UsageError("--json and --emit both print the answer: give one of them")
