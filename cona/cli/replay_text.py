"""What `cona replay` prints: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from cona.cli.terminal import json_text, table
from cona.replay.replay import Replay, ReplayStage

HEAD = ("#", "strategy", "samples", "s/iteration", "believed", "iterations", "s", "switch s", "GNS")
DROP = ("believed", "iterations", "samples")
"""Columns that a narrow terminal does without, the least important first."""


def as_text(found: Replay) -> str:
    """Return the stages as a table, then why each was chosen, what was adapted, and the totals."""
    lines = [_cells(i, stage) for i, stage in enumerate(found.stages, start=1)]
    reasons = [f"{i}  {stage.reason}" for i, stage in enumerate(found.stages, start=1)]
    blocks = [
        _title(found),
        table(HEAD, lines, drop=DROP),
        "\n".join(["Why:", *reasons]),
        _totals(found),
    ]
    return "\n\n".join([*blocks, *(f"Note: {note}." for note in found.notes)])


def _title(found: Replay) -> str:
    problem, cluster = found.problem, found.problem.cluster
    trained, priced = problem.trained_model.name, problem.model.name
    as_priced = "" if trained == priced else f" (priced as {priced})"
    return (
        f"{found.policy} for {trained}{as_priced} on {cluster.name} ({cluster.num_gpus:,} x "
        f"{cluster.gpu}), tier {problem.tier.name}; seconds are modelled by "
        f"{found.reference.name}, the policy believes {problem.belief.name}"
    )


def _cells(number: int, stage: ReplayStage) -> tuple[str, ...]:
    believed = "-" if stage.believed_s is None else f"{stage.believed_s:.4g}"
    return (
        str(number),
        str(stage.strategy),
        f"{stage.samples:,}",
        f"{stage.iteration_s:.4g}",
        believed,
        f"{stage.num_iterations:,}",
        f"{stage.compute_s:.4g}",
        f"{stage.switch_s:.4g}",
        "-" if stage.gns is None else f"{stage.gns:.4g}",
    )


def _totals(found: Replay) -> str:
    switch_s = sum(stage.switch_s for stage in found.stages)
    return (
        f"{len(found.stages)} stages, {found.samples:,} samples in {found.train_s:.4g} s, of which "
        f"{switch_s:.4g} s switching; the budget is {found.problem.time_budget_s:.4g} s."
    )


def as_json(found: Replay) -> str:
    """Return the replay as JSON; times in seconds, noise scales and sizes in samples."""
    problem = found.problem
    content = {
        "policy": found.policy,
        "model": problem.trained_model.name,
        "priced_as": problem.model.name,
        "cluster": problem.cluster.name,
        "num_gpus": problem.cluster.num_gpus,
        "tier": problem.tier.name,
        "clock": "modelled",
        "time_source": found.reference.name,
        "belief": problem.belief.name,
        "switch_cost": problem.tier.clock.switch_cost,
        "rungs": list(problem.rungs),
        "time_budget_s": problem.time_budget_s,
        "samples": found.samples,
        "train_s": found.train_s,
        "notes": list(found.notes),
        "stages": [_fields(stage) for stage in found.stages],
    }
    return json_text(content)


def _fields(stage: ReplayStage) -> dict[str, Any]:
    return {
        "strategy": str(stage.strategy),
        "gbs": stage.strategy.gbs,
        "samples": stage.samples,
        "train_s": stage.train_s,
        "switch_s": stage.switch_s,
        "num_iterations": stage.num_iterations,
        "iteration_s": stage.iteration_s,
        "believed_s": stage.believed_s,
        "compute_s": stage.compute_s,
        "gns": stage.gns,
        "reason": stage.reason,
    }
