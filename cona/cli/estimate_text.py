"""What `cona estimate` prints: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from cona.cli.terminal import json_text, table
from cona.estimate import ModelCost, TierCost
from cona.estimate.run_cost import CPU_FLOPS, DISK_BYTES_PER_S, EVALUATION_SHARE
from cona.estimate.tier_cost import JOBS_AT_ONCE, START_S, Ahead

HEAD = (
    *("model", "runs", "jobs", "GPU-h", "host-h", "disk GB", "at its peak"),
    *("GPU GB/rank", "host GB/rank"),
)
WORDS = {
    "train": "train",
    "look_ahead": "look ahead",
    "evaluation": "evaluate",
    "checkpoint": "save",
    "start": "start",
}
"""What time goes to, as columns."""


def as_text(cost: TierCost) -> str:
    """Return an estimate for people, at most 100 columns wide."""
    total = (
        "total",
        str(cost.num_runs),
        str(cost.num_jobs),
        _hours(cost.gpu_hours),
        _hours(cost.host_hours),
        _gb(cost.disk_bytes),
        _gb(cost.peak_disk_bytes),
        "",
        "",
    )
    blocks = [
        _title(cost),
        table(HEAD, [*map(_cells, cost.models), total]),
        "Time of a model's jobs, one after the other, and their turns in the queue:",
        table(("model", "a budget", *WORDS.values(), "turns"), [*map(_time_cells, cost.models)]),
    ]
    return "\n\n".join([*blocks, *_look_ahead_blocks(cost), "\n".join(_assumptions(cost))])


def _title(cost: TierCost) -> str:
    tier, cluster = cost.tier, cost.cluster
    geometry = cost.models[0].geometry
    ranks = geometry.num_nodes * geometry.ranks_per_node
    where = f"on {cluster.name}" if tier.clock.kind == "measured" else "on the modelled clock"
    return (
        f"{tier.name} {where}: at most, modelled by {tier.clock.time_source}; a job is "
        f"{ranks} {'rank' if ranks == 1 else 'ranks'} on "
        f"{geometry.num_nodes} {'node' if geometry.num_nodes == 1 else 'nodes'}"
    )


def _cells(model: ModelCost) -> tuple[str, ...]:
    gpu = model.gpu_memory_bytes
    return (
        model.model,
        str(model.num_runs),
        str(model.num_jobs),
        _hours(model.gpu_hours),
        _hours(model.host_hours),
        _gb(model.disk_bytes),
        _gb(model.peak_disk_bytes),
        "-" if gpu is None else _gb(gpu),
        _gb(model.host_memory_bytes),
    )


def _time_cells(model: ModelCost) -> tuple[str, ...]:
    times = [_time(model.seconds[key]) for key in WORDS]
    return (model.model, _time(model.budget_s), *times, str(model.num_turns))


def _look_ahead_blocks(cost: TierCost) -> Iterator[str]:
    """Explain the multipliers: what is free on the clock is not free on the cluster."""
    found: dict[str, list[Ahead]] = {}
    for model in cost.models:
        for policy, ahead in model.look_ahead.items():
            found.setdefault(policy, []).append(ahead)
    if not found:
        return
    yield "Some policies train ahead beside their run, free on the clock but not on the cluster:"
    lines = [
        (
            policy,
            _span(f"{ahead.multiplier:.1f}" for ahead in each),
            _span(f"{ahead.num_probes:,}" for ahead in each),
        )
        for policy, each in found.items()
    ]
    yield table(("policy", "runs' training in one run", "probes"), lines)
    settings = cost.tier.oracle
    when = f"{settings.decisions} times in a budget" if settings.decisions else "every iteration"
    which = {"ladder": "every batch size", "neighbours": "neighbouring batch sizes"}
    yield f"The oracle tries {which[settings.forks]} {when}; the winner is trained once more."


def _span(values: Iterable[str]) -> str:
    """Return values of the models as one, or as the first and the last of them in order."""
    known = sorted(set(values), key=lambda text: float(text.replace(",", "")))
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _assumptions(cost: TierCost) -> Iterator[str]:
    limit = cost.tier.jobs.runtime_min / 60
    yield "Assumed:"
    yield "  policies that change their batch size are priced where that takes most;"
    yield "  switches are inside the budget, but those of forks;"
    yield f"  an evaluation takes {EVALUATION_SHARE:g} of training on as many samples;"
    yield f"  a turn starts in {START_S:g} s and lasts {limit:g} h (jobs.runtime_min);"
    rate = f"{DISK_BYTES_PER_S / 1e9:g} GB/s"
    yield f"  checkpoints and snapshots are written at {rate}; a run leaves its last checkpoint;"
    yield f"  disk at its peak: {JOBS_AT_ONCE} jobs run at once, each with what it will delete;"
    if cost.tier.clock.kind == "modelled":
        cores = f"{CPU_FLOPS / 1e9:g} GFLOP/s on a CPU core"
        yield f"  one process trains: as fast as the cost model's GPU, or {cores};"
    yield "  no queueing, no faults; text, tokens, figures and MLflow are not counted."


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    if seconds == 0:
        return "-"
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{_hours(seconds / 3600)} h"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f}" if size >= 1e11 else f"{size / 1e9:.3g}"


def as_json(cost: TierCost) -> str:
    """Return an estimate for programs; hours and bytes are upper ones."""
    content = {
        "tier": cost.tier.name,
        "cluster": cost.cluster.name,
        "clock": cost.tier.clock.kind,
        "seconds_are": f"modelled by {cost.tier.clock.time_source}",
        "num_jobs": cost.num_jobs,
        "num_runs": cost.num_runs,
        "gpu_hours": cost.gpu_hours,
        "host_hours": cost.host_hours,
        "disk_bytes": cost.disk_bytes,
        "peak_disk_bytes": cost.peak_disk_bytes,
        "models": [_fields(model) for model in cost.models],
        "assumed": [line.strip() for line in _assumptions(cost)][1:],
    }
    return json_text(content)


def _fields(model: ModelCost) -> dict[str, Any]:
    derived = ("gpu_hours", "host_hours", "peak_disk_bytes")
    return asdict(model) | {name: getattr(model, name) for name in derived}
