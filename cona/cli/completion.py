"""`cona completion`: let a shell complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print what lets a shell complete commands and names.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, and names.

    Names are those of policies, planners, models, clusters, tiers, scales and cost models.

    \b
    Examples:
      eval "$(cona completion bash)"                  now; for good: in ~/.bashrc
      eval "$(cona completion zsh)"                   in ~/.zshrc, after compinit
      cona completion fish > ~/.config/fish/completions/cona.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for '{shell}': valid: {', '.join(SHELLS)}")
    click.echo(kind(ctx.find_root().command, {}, "cona", "_CONA_COMPLETE").source())
