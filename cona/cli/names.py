"""What a shell may complete: names of policies, planners, models, clusters, tiers and presets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from cona import config
from cona.errors import ConaError
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, TierSpec

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(names: Callable[[], Iterable[str]], *, or_file: bool = True) -> Complete:
    """Return what completes names; where none fits, a file may be meant."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = [name for name in names() if name.startswith(incomplete)]
        except ConaError:  # of a broken file: the command itself will say so
            found = []
        if found or not or_file:
            return [CompletionItem(name) for name in found]
        return [CompletionItem(incomplete, type="file")]

    return complete


def _policies() -> Iterable[str]:
    from cona import registry

    return registry.policies()


def _planners() -> Iterable[str]:
    from cona.planners.report import chosen_names

    return ("all", *chosen_names("all"))


def _presets() -> Iterable[str]:
    from cona.cost import time_models

    return time_models()


def _trainers() -> Iterable[str]:
    from cona.emit import TRAINERS

    return TRAINERS


models = _complete(lambda: config.names(ModelSpec))
clusters = _complete(lambda: config.names(ClusterSpec))
tiers = _complete(lambda: config.names(TierSpec))
scales = _complete(lambda: config.names(ScaleSpec))
policies = _complete(_policies, or_file=False)
planners = _complete(_planners, or_file=False)
presets = _complete(_presets, or_file=False)
trainers = _complete(_trainers, or_file=False)
