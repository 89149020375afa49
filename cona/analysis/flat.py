"""A run as flat names and numbers, the form in which experiment trackers store it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cona.analysis.load import Record, Run
from cona.analysis.thresholds import finite
from cona.analysis.ttp import Ttp, label

MAX_POINTS = 200
"""Most iterations of a run whose quantities are kept, evenly spaced; evaluations are all kept."""
STEP_KEYS = ("loss", "lr", "grad_norm", "gns", "gns_low", "gns_high", "iteration_s", "gbs")
"""Quantities of an iteration, over samples."""
CLOCK_KEYS = ("gns", "gbs")
"""Those of them that are kept over the clock too."""
OVER_CLOCK = "_over_clock_ms"
"""Suffix of a quantity whose step is whole milliseconds of the train clock."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One finite value of a named quantity."""

    name: str
    value: float
    step: int
    """Consumed samples, or milliseconds of the train clock for names in _over_clock_ms."""
    train_s: float
    """Train clock, seconds."""


def parameters(run: Run) -> dict[str, str]:
    """Return what was chosen before the run, as text; what is not known is left out."""
    result, clock = run.result, run.clock
    plain = ("tier", "model", "policy", "seed", "kind", "source", "time_budget_s", "belief")
    chosen = {key: result.get(key) for key in plain}
    timed = ("time_source", "switch_cost", "cluster", "priced_as")
    chosen |= {key: clock.get(key) for key in timed}
    ladder = run.tier_config.get("ladder", {})
    chosen |= {"corpus": run.corpus, **{key: ladder.get(key) for key in ("gbs_min", "gbs_max")}}
    return {key: str(value) for key, value in chosen.items() if value is not None}


def labels(run: Run) -> dict[str, str]:
    """Return what identifies the run and where it came from, as text, as far as it is known."""
    result = run.result
    who = ("model", "policy", "kind", "seed", "tier")
    where_from = ("belief", "config_hash", "data_hash", "status", "perplexity_name")
    found = {key: result.get(key) for key in who + where_from}
    found |= {"clock": run.clock["kind"], "time_source": run.clock.get("time_source")}
    found["commit"] = run.info.get("commit")
    return {key: str(value) for key, value in found.items() if value is not None}


def ttp_labels(rows: Sequence[Ttp]) -> dict[str, str]:
    """Return, for every target of a run, whether it was reached."""
    return {f"ttp_reached/{label(r.target)}": "yes" if r.crossing else "no" for r in rows}


def points(run: Run, rows: Sequence[Ttp]) -> list[Point]:
    """Return every number of a run, each name and step once; what is not finite is left out.

    Args:
        run: a finished run.
        rows: its TTP rows; unreached targets give no number.
    """
    return _once([*_of_steps(run), *_of_evals(run), *_totals(run), *_of_ttp(run, rows)])


def curves(run: Run) -> list[Point]:
    """Return the numbers of a run so far, each name and step once; it need not be finished."""
    return _once([*_of_steps(run), *_of_evals(run)])


def _once(found: Sequence[Point]) -> list[Point]:
    return list({(p.name, p.step): p for p in found}.values())


def _of_steps(run: Run) -> Iterator[Point]:
    stride = -(-len(run.steps) // MAX_POINTS) or 1
    for step in run.steps[::stride]:
        for key in STEP_KEYS:
            yield from _points(key, step[key], step, over_clock=key in CLOCK_KEYS)


def _of_evals(run: Run) -> Iterator[Point]:
    for line in run.evals:
        yield from _points(run.metric, line["ppl"], line, over_clock=True)
        yield from _points("bits_per_byte", line["bits_per_byte"], line, over_clock=True)
        yield from _points("train_s", line["train_s"], line, over_clock=False)


def _totals(run: Run) -> Iterator[Point]:
    result = run.result
    named = {
        f"final_{run.metric}": result["ppl"],
        f"best_{run.metric}": result["best_ppl"],
        "total_train_s": result["train_s"],
        "total_compute_s": result["compute_s"],
        "total_iterations": result["iterations"],
        "total_samples": result["samples"],
        "num_switches": result["num_switches"],
        "num_gbs_switches": result["num_gbs_switches"],
    }
    for name, value in named.items():
        yield from _points(name, value, result, over_clock=False)


def _of_ttp(run: Run, rows: Sequence[Ttp]) -> Iterator[Point]:
    for row in rows:
        name = f"ttp_train_s/{label(row.target)}"
        yield from _points(name, row.train_s, run.result, over_clock=False)


def _points(name: str, value: object, at: Record, *, over_clock: bool) -> Iterator[Point]:
    number, seconds = finite(value), float(at["train_s"])
    if number is None:
        return
    yield Point(name=name, value=number, step=int(at["samples"]), train_s=seconds)
    if over_clock:
        step = round(seconds * 1000)
        yield Point(name=name + OVER_CLOCK, value=number, step=step, train_s=seconds)
