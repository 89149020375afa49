"""Help in sections, and errors that are one sentence and an exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from cona.errors import ConaError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""


class Cona(click.Group):
    """A group of commands in sections, whose errors are one sentence and an exit status."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, Sequence[click.Command]] = {}

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Add commands below a heading."""
        self.sections[title] = commands
        for command in commands:
            self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, section by section."""
        width = max(len(name) for name in self.commands)
        for title, commands in self.sections.items():
            rows = [
                (f"{command.name:<{width}}", command.get_short_help_str(formatter.width))
                for command in commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command; what a user can mend becomes one sentence on stderr."""
        try:
            return super().invoke(ctx)
        except ConaError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:  # the reader has seen enough, e.g. `head`: click knows what to do
            raise
        except OSError as error:  # a full disk, a read-only folder, a file in a folder's place
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"Error: {where}{error.strerror or error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("Error: interrupted", err=True)
            ctx.exit(INTERRUPTED)


class Grouped(click.Command):
    """A command with so many options that its help groups them.

    Args:
        groups: heading to names of options, as the function has them; others come last.
    """

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        named = {name for names in self.groups.values() for name in names}
        others = [one.name for one in self.get_params(ctx) if one.name not in named]
        for title, names in {**self.groups, "Other options": others}.items():
            options = [one for one in self.get_params(ctx) if one.name in names]
            records = [record for one in options if (record := one.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
