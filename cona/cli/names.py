"""What a shell may complete: names of policies, planners, models, clusters, tiers and presets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from cona import config
from cona.errors import ConaError
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, Spec, TierSpec

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(names: Callable[[str], Iterable[str]], *, or_file: bool = True) -> Complete:
    """Return what completes names; where none fits, a file may be meant.

    Args:
        names: from what is typed to the names that there are.
        or_file: whether a file may stand for a name.
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = [name for name in names(incomplete) if name.startswith(incomplete)]
        except ConaError:  # of a broken file: the command itself will say so
            found = []
        if found or not or_file:
            return [CompletionItem(name) for name in found]
        return [CompletionItem(incomplete, type="file")]

    return complete


def _named(kind: type[Spec]) -> Callable[[str], Iterable[str]]:
    return lambda _: config.names(kind)


def _tiers(incomplete: str) -> Iterable[str]:
    """The tiers; behind an @ that tier at every scale."""
    tier, at, _ = incomplete.rpartition("@")
    return (
        [f"{tier}@{scale}" for scale in config.names(ScaleSpec)] if at else config.names(TierSpec)
    )


def _policies(_: str) -> Iterable[str]:
    from cona import registry

    return registry.policies()


def _planners(_: str) -> Iterable[str]:
    from cona.planners.report import chosen_names

    return ("all", *chosen_names("all"))


def _presets(_: str) -> Iterable[str]:
    from cona.cost import time_models

    return time_models()


def _trainers(_: str) -> Iterable[str]:
    from cona.emit import TRAINERS

    return TRAINERS


models = _complete(_named(ModelSpec))
clusters = _complete(_named(ClusterSpec))
tiers = _complete(_tiers)
scales = _complete(_named(ScaleSpec))
policies = _complete(_policies, or_file=False)
planners = _complete(_planners, or_file=False)
presets = _complete(_presets, or_file=False)
trainers = _complete(_trainers, or_file=False)
