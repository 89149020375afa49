"""docs/command-line.md, from the commands' own help.

`python -m cona.cli.reference`, called at the root of the repository, writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cona.cli import main

PAGE = Path("docs/command-line.md")
WIDTH = 88
"""Characters of a line in the page's blocks."""

HEAD = """\
# Command line

<!-- Written by `python -m cona.cli.reference` from the commands' help; change it there. -->

What you read here is what `cona --help` and `cona COMMAND --help` print.

- **Streams.** Answers, tables and JSON go to stdout; errors, notes and progress to stderr.
  Progress is shown only on a terminal, never in a pipe or a log.
- **Width.** On a terminal no table is wider than it is: words are wrapped, then the least important
  columns are left out, and a last line says which. In a pipe or a file each row is one whole line.
  `COLUMNS=80` asks for a width anywhere.
- **JSON.** `--json` prints the same facts and more, in full precision: one object or list, seconds,
  bytes and samples without units, `null` for what is unknown; the help names the keys. A version
  may add keys; it renames or removes none without saying so in the [changelog](changelog.md).
- **Errors** are one sentence that names the value, the rule and the nearest valid choice.
- **Exit status** is listed below, and scripts may rely on it.
- **Completion.** `eval "$(cona completion bash)"`, or `zsh`; `cona completion fish` for fish.
  Completed are commands, options, and names of policies, planners, models, clusters, tiers, scales
  and cost models.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, _block(main), *_sections()])


def _sections() -> Iterator[str]:
    context = click.Context(main, info_name="cona", **main.context_settings)
    for title, commands in main.sections.items():
        yield f"## {title}\n"
        for command in commands:
            yield f"### cona {command.name}\n"
            yield _block(command, context)


def _block(command: click.Command, parent: click.Context | None = None) -> str:
    settings = {**command.context_settings, "terminal_width": WIDTH}
    name = command.name if parent else "cona"
    context = click.Context(command, parent=parent, info_name=name, **settings)
    text = re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
