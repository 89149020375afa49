"""How `cona plan` answers: what its options mean, the search, and what is printed or drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from cona import config
from cona.cli import plan_text
from cona.cli.terminal import say
from cona.cost import TimeModel, time_model, time_models
from cona.cost.ranking import Ranked, rank
from cona.emit import TRAINERS, emit, why_not
from cona.errors import ConfigError, nearest
from cona.planning import (
    DEFAULT_PRESET,
    Choices,
    Rung,
    Spaces,
    candidates,
    ladder,
    plan_rungs,
    search_spaces,
)
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Recompute, Strategy, Techniques


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `cona plan`."""

    model: str
    cluster: str
    gbs: int | None
    gbs_max: int | None
    ladder: bool
    seq: int | None
    mbs_max: int
    zero: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    sequence_parallel: bool
    virtual_stages: tuple[int, ...]
    context_parallel: tuple[int, ...]
    preset: str | None
    top: int
    as_json: bool
    trainer: str | None
    figure: Path | None

    @property
    def choices(self) -> Choices:
        """The techniques that may be used."""
        return Choices(
            zero_stages=self.zero,
            recompute=self.recompute,
            virtual_stages=self.virtual_stages,
            context_parallel=self.context_parallel,
            sequence_parallel=self.sequence_parallel,
        )

    def batch_sizes(self, spaces: Spaces) -> tuple[int, ...]:
        """Return the global batch sizes that are asked for, ascending, samples.

        Args:
            spaces: what may be chosen: a ladder without bounds begins where it has layouts.

        Raises:
            ConfigError: none is given, or they do not double.
        """
        if self.ladder:
            return ladder(spaces, self.gbs, self.gbs_max)
        if self.gbs is None:
            raise ConfigError("--gbs is missing: give a global batch size like 64, or --ladder")
        return (self.gbs,)


def answer(request: Request) -> None:
    """Search, and print what was asked for. Raises ConfigError."""
    if request.trainer and request.trainer not in TRAINERS:
        raise ConfigError(f"--emit '{request.trainer}': {nearest(request.trainer, TRAINERS)}")
    model = load_model(request.model, request.seq)
    cluster = config.load(ClusterSpec, request.cluster)
    preset = request.preset or DEFAULT_PRESET
    refuse_techniques(preset, request.choices)
    spaces = search_spaces(
        model, cluster.num_gpus, mbs_max=request.mbs_max, choices=request.choices
    )
    sizes = request.batch_sizes(spaces)
    if not request.ladder:
        sizes = (*sizes, 2 * sizes[0])  # it says when a larger batch wins
    prices = time_model(preset, model, cluster)
    rungs = plan_rungs(spaces, sizes, prices, top=1 if request.ladder else request.top)
    about = plan_text.About(
        model=model, cluster=cluster, preset=preset, is_calibrated=calibrated(prices)
    )
    shown = rungs if request.ladder else feasible(rungs[:1])
    show(request, about, shown)
    if request.trainer:
        fastest = next(rung for rung in shown if rung.ranked).ranked[0]
        found = candidates(spaces, fastest.strategy.gbs)
        emit_best(request.trainer, model, fastest, found, prices)


def show(request: Request, about: plan_text.About, rungs: tuple[Rung, ...]) -> None:
    """Draw what was asked for, and print it unless a trainer's file is."""
    if request.figure:
        draw(rungs, about.title, request.figure)
    if request.trainer:
        return
    if request.as_json:
        click.echo(plan_text.as_json(about, rungs))
    else:
        say(plan_text.ladder(about, rungs) if request.ladder else plan_text.top(about, rungs[0]))


def calibrated(prices: TimeModel) -> bool | None:
    """Return whether a model's constants were fitted to its GPU type; None: it has none."""
    calibration = getattr(prices, "calibration", None)
    return None if calibration is None else bool(calibration.calibrated)


def refuse_techniques(preset: str, choices: Choices) -> None:
    """Raise ConfigError if a preset would give a technique no price of its own."""
    if preset.startswith("calculon") and choices.techniques != (Techniques(),):
        raise ConfigError(
            f"preset '{preset}' prices full recomputation and ZeRO-1 whatever is asked for: "
            f"leave the techniques out, or use another of {', '.join(time_models())}"
        )


def load_model(name: str, seq_length: int | None) -> ModelSpec:
    """Return a model by name, YAML file or config.json; raises ConfigError."""
    if name.endswith(".json"):
        from cona import hf

        return hf.load(Path(name), seq_length)
    model = config.load(ModelSpec, name)
    if seq_length is None:
        return model
    return config.override(model, {"seq_length": seq_length}, where="--seq")


def feasible(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
    """Return the rungs; raises ConfigError for one on which nothing can run."""
    for rung in rungs:
        if rung.why_none:
            raise ConfigError(f"gbs {rung.gbs}: {rung.why_none}")
    return rungs


def emit_best(
    trainer: str,
    model: ModelSpec,
    fastest: Ranked,
    strategies: tuple[Strategy, ...],
    prices: TimeModel,
) -> None:
    """Print the fastest strategy for a trainer; notes go to stderr, so that stdout is the file.

    Args:
        trainer: a key of ``TRAINERS``; one that cannot run the fastest gets the next that it can.
        model: the model, for its shape.
        fastest: the fastest of the strategies.
        strategies: all candidates.
        prices: what T is.

    Raises:
        ConfigError: the trainer can run no feasible strategy.
    """
    best, rule = fastest, why_not(trainer, fastest.strategy)
    if rule:
        best = fastest_expressible(trainer, strategies, prices, rule)
    emitted = emit(trainer, best.strategy, model)
    click.echo(emitted.text, nl=False)
    notes = (best.name, *emitted.notes)
    if rule:
        slower = 100 * (best.iteration_s / fastest.iteration_s - 1)
        notes = (f"not the fastest, {fastest.name}: {rule}; {slower:.3g} % slower:", *notes)
    for note in notes:
        click.echo(f"# {note}", err=True)


def fastest_expressible(
    trainer: str, strategies: tuple[Strategy, ...], prices: TimeModel, rule: str
) -> Ranked:
    """Return the fastest strategy that a trainer can run; raises ConfigError: there is none.

    Args:
        trainer: a key of ``TRAINERS``.
        strategies: candidates of one global batch size.
        prices: what T is.
        rule: why the fastest of all cannot run.
    """
    expressible = [s for s in strategies if why_not(trainer, s) is None]
    if not expressible:
        raise ConfigError(f"--emit '{trainer}': {rule}, and no other strategy can run")
    return rank(expressible, prices, 1)[0]


def draw(rungs: tuple[Rung, ...], title: str, path: Path) -> None:
    """Draw the breakdown of all strategies that are shown."""
    from cona.analysis.figure_breakdown import write_breakdown

    ranked = [one for rung in rungs for one in rung.ranked]
    for written in write_breakdown(ranked, title, path):
        click.echo(written, err=True)
