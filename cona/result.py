"""What result.json says: which run it was, what it cost, and what it came to."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cona.config import content_hash
from cona.runlog import Record, sha256
from cona.strategy import Strategy

if TYPE_CHECKING:
    from cona.runner import Run

RESULT_SCHEMA = 1
"""Version of the result format, docs/results-format.md."""

HASH = "result_hash"
"""Key of result.json: the checksum of all others."""


def sealed(facts: Record) -> Record:
    """Return the content of result.json with its checksum as last key; an old one is replaced."""
    return {**_unsealed(facts), HASH: content_hash(_unsealed(facts))}


def is_intact(result: Record) -> bool:
    """Return whether the content of a result.json is what was written; spaces do not count."""
    try:
        return bool(result.get(HASH) == content_hash(_unsealed(result)))
    except ValueError:  # NaN or infinity, which are never written
        return False


def _unsealed(result: Record) -> Record:
    return {key: value for key, value in result.items() if key != HASH}


def result_facts(run: Run) -> dict[str, Any]:
    """Return the content of result.json; metrics.jsonl is complete and closed by then.

    Args:
        run: one that is over.
    """
    return sealed({"schema": RESULT_SCHEMA, **_identity(run), **_course(run), **_origin(run)})


def _identity(run: Run) -> dict[str, Any]:
    setup = run.setup
    return {
        "status": "diverged" if run.diverged else "finished",
        "tier": run.tier.name,
        "model": setup.model.name,
        "policy": setup.request.policy,
        "seed": setup.request.seed,
        "kind": run.policy.kind,
        "source": run.policy.source,
        "perplexity_name": setup.model.perplexity_name,
        "clock": run.clock.facts,
        "belief": setup.belief.name,
        "time_budget_s": setup.time_budget_s,
    }


def _course(run: Run) -> dict[str, Any]:
    clock, walk, num_skipped = run.clock, run.trajectory, run.watch.num_skipped
    off_the_clock = {"checkpoint_s": walk.checkpoint_s, "probe_s": walk.probe_s}
    gbs = [Strategy.parse(stage["strategy"]).gbs for stage in run.stages]
    perplexities = [e["ppl"] for e in run.evaluations if e["ppl"] is not None]
    return {
        "train_s": clock.train_s,
        "compute_s": clock.compute_s,
        "switch_s": dict(clock.switch_s),
        "wall_s": clock.wall_s,
        **{name: s for name, s in off_the_clock.items() if s is not None},
        "iterations": run.iteration,
        "samples": run.samples,
        **({"num_skipped": num_skipped} if num_skipped else {}),
        "ppl": None if run.diverged else run.evaluations[-1]["ppl"],
        "best_ppl": min(perplexities, default=None),
        "num_switches": len(run.stages) - 1,
        "num_gbs_switches": sum(a != b for a, b in pairwise(gbs)),
        "stages": run.stages,
    }


def _origin(run: Run) -> dict[str, Any]:
    setup = run.setup
    return {
        "warmup_samples": setup.lr.warmup_samples,
        "trajectories": run.trajectory.segments,
        "data_hash": setup.prepared.content_hash,
        "config_hash": setup.config_hash,
        "comparison_key": setup.comparison_key,
        "run_key": setup.run_key,
        "metrics_sha256": sha256(run.folder / "metrics.jsonl"),
    }
