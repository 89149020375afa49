"""`cona completion`: let a shell complete commands, options and names."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

SHELLS = ("bash", "zsh", "fish")


@add_completion_class
class Bash(BashComplete):
    """Completes names that bash takes for several words, like paper@tiny and amp-memory=on.

    Bash breaks words at the characters of COMP_WORDBREAKS and replaces only what follows the last
    of them. So the whole line is read instead of its words, and an answer begins where bash does.
    """

    source_template = BashComplete.source_template.replace(
        'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD',
        'COMP_LINE="$COMP_LINE" COMP_POINT=$COMP_POINT COMP_WORDBREAKS="$COMP_WORDBREAKS"',
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words before the cursor, and what is typed of the next."""
        line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return an answer without what stands before the last word break."""
        _, typed = self.get_completion_args()
        if typed.startswith("-"):  # --tier=paper@t: click completes what follows the equals sign
            typed = typed.partition("=")[2]
        breaks = os.environ["COMP_WORDBREAKS"]
        # An @ is a break that bash leaves in the word: it may begin the name of a host.
        ends = [i + (c != "@") for i, c in enumerate(typed) if c in breaks]
        return f"{item.type},{item.value[max(ends, default=0) :]}"


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
