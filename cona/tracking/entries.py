"""From files to entries of MLflow: a run of one seed, a policy over its seeds, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from cona.analysis.flat import Point, curves, labels, parameters, points, ttp_labels
from cona.analysis.load import Run
from cona.analysis.ttp import Ttp
from cona.config import content_hash
from cona.runlog import dumps, sha256
from cona.tracking.entry import Entry, Status
from cona.tracking.unfinished import Unfinished, signature

PARENT = "mlflow.parentRunId"
"""Tag by which MLflow shows a run below another one."""
LEVEL = "level"
"""Tag: `seed` for what was trained, `policy` for what sums up its seeds, `report`."""
# Names have the policy first: MLflow cuts long ones, and of runs that are compared it differs.
_FILES = ("run.json", "result.json", "metrics.jsonl", "events.jsonl")
_TOTALS = ("final_", "best_", "total_", "num_", "ttp_")
"""How names of numbers begin that a run has once."""
_WORST: tuple[Status, ...] = ("RUNNING", "FAILED", "KILLED")
"""What a policy is as soon as one of its seeds is, in this order."""


def of_run(run: Run, rows: Sequence[Ttp]) -> Entry:
    """Return the entry of a finished run.

    Args:
        run: the run.
        rows: its TTP rows.
    """
    end_ms = _written_ms(run.path / "result.json")
    return Entry(
        name=f"{run.policy} seed{run.seed} {run.model}",
        key=run.result["run_key"],
        content=sha256(run.path / "result.json"),
        status="FINISHED" if run.result["status"] == "finished" else "FAILED",
        start_ms=end_ms - round(float(run.result["train_s"]) * 1000),
        end_ms=end_ms,
        tags={LEVEL: "seed", **labels(run), **ttp_labels(rows)},
        parameters=parameters(run),
        points=points(run, rows),
        files={"": _present(run.path)},
        texts={"decisions.jsonl": _decision_log(run)},
    )


def of_unfinished(found: Unfinished) -> Entry:
    """Return the entry of a run that began and has no result, with its curves so far."""
    run = found.run
    written = [p for p in _present(run.path) if p.name.endswith(".jsonl")]
    end_ms = max((_written_ms(p) for p in written), default=_written_ms(run.path / "run.json"))
    last_s = max((float(line["train_s"]) for line in (*run.steps, *run.evals)), default=0.0)
    reason = {"reason": found.reason} if found.reason else {}
    return Entry(
        name=f"{run.policy} seed{run.seed} {run.model}",
        key=run.result["run_key"],
        content=signature(found),
        status=found.status,
        start_ms=end_ms - round(last_s * 1000),
        end_ms=end_ms,
        tags={LEVEL: "seed", **labels(run), "status": found.status.lower(), **reason},
        parameters=parameters(run),
        points=curves(run),
        files={"": _present(run.path)},
        texts={"decisions.jsonl": _decision_log(run)},
    )


def of_policy(seeds: Sequence[Entry]) -> Entry:
    """Return what sums up the seeds of a model and policy: medians of the finished ones.

    Args:
        seeds: at least one entry, all of the same model and policy.
    """
    first = seeds[0]
    finished = [seed for seed in seeds if seed.status == "FINISHED"]
    shared = ("model", "policy", "kind", "tier", "clock", "time_source", "perplexity_name")
    states = Counter(seed.tags["status"] for seed in seeds)
    start_ms = min(seed.start_ms for seed in seeds)
    name = f"{first.tags['policy']} {first.tags['model']}"
    return Entry(
        name=name,
        key=name,
        content=content_hash([(s.key, s.content, sorted(s.tags.items())) for s in seeds]),
        status=_worst(seeds),
        start_ms=start_ms,
        end_ms=max(seed.end_ms for seed in seeds),
        tags={
            LEVEL: "policy",
            **{key: first.tags[key] for key in shared if key in first.tags},
            "status": ", ".join(f"{n} {state}" for state, n in sorted(states.items())),
            "num_seeds": str(len(seeds)),
        },
        points=list(_medians([seed.points for seed in finished])),
    )


def of_report(folder: Path) -> Entry | None:
    """Return the entry that holds the tables and figures of a tier; None if there are none.

    Args:
        folder: of the tier, below the results.
    """
    kinds = ("tables", "figures")
    files = {kind: sorted(p for p in (folder / kind).glob("*") if p.is_file()) for kind in kinds}
    if not (every := [path for paths in files.values() for path in paths]):
        return None
    written_ms = max(_written_ms(path) for path in every)
    return Entry(
        name="report",
        key="report",
        content=content_hash([(str(p.relative_to(folder)), sha256(p)) for p in every]),
        status="FINISHED",
        start_ms=written_ms,
        end_ms=written_ms,
        tags={LEVEL: "report", "tier": folder.name},
        files=files,
    )


def _worst(seeds: Iterable[Entry]) -> Status:
    states = {seed.status for seed in seeds}
    return next((state for state in _WORST if state in states), "FINISHED")


def _medians(seeds: Sequence[Sequence[Point]]) -> Iterator[Point]:
    """Yield the median of every value that all seeds have at the same step, and of all totals.

    A total stands where its run ends, which differs: its median is given at step 0.
    """
    found: dict[tuple[str, int], list[Point]] = {}
    for point in (point for seed in seeds for point in seed):
        step = 0 if point.name.startswith(_TOTALS) else point.step
        found.setdefault((point.name, step), []).append(point)
    for (name, step), same in found.items():
        if len(same) == len(seeds):
            train_s = median(p.train_s for p in same)
            yield Point(name=name, value=median(p.value for p in same), step=step, train_s=train_s)


def _decision_log(run: Run) -> str:
    """Return what the policy weighed and did, in order."""
    lines = sorted((*run.decisions, *run.switches), key=lambda line: line["iteration"])
    return "".join(dumps(line) + "\n" for line in lines)


def _present(folder: Path) -> list[Path]:
    return [path for name in _FILES if (path := folder / name).exists()]


def _written_ms(path: Path) -> int:
    return int(path.stat().st_mtime * 1000)
