"""What each run did: how it ended, and which strategies it chained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cona.analysis.groups import by_model
from cona.analysis.load import Run
from cona.analysis.markdown import number, page, table
from cona.analysis.notes import notes, num_seeds
from cona.analysis.thresholds import StageNoise, chain, stage_noise

_NUMBERS = ("ppl", "best_ppl", "train_s", "compute_s", "samples", "iterations")
_COUNTS = ("num_switches", "num_gbs_switches")
COLUMNS = ("model", "policy", "kind", "seed", "status", "metric", *_NUMBERS, *_COUNTS, "stages")
FEW_SWITCHES = 2
"""Below this many switches `cona` has to show its noise scale against the thresholds."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every run."""
    return [
        {
            "model": run.model,
            "policy": run.policy,
            "kind": run.kind,
            "seed": run.seed,
            "status": run.result["status"],
            "metric": run.metric,
            **{key: run.result[key] for key in (*_NUMBERS, *_COUNTS)},
            "stages": chain(run),
        }
        for run in runs
    ]


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page with one line for every run."""
    own = (
        "Perplexity: last and lowest evaluation. Chain: each strategy, and after how many "
        "samples it began.",
        "One line for each run, nothing is averaged.",
    )
    headers = ["policy", "seed", "status", "ppl", "best", "train s", "samples"]
    headers += ["switches", "of gbs"]
    sections = []
    for model, group in by_model(runs).items():
        chains = "\n".join(f"- `{r.policy}` seed {r.seed}: {chain(r)}" for r in group)
        lines = table(headers, [_line(r) for r in group])
        sections += [f"## {model} ({group[0].metric})", lines, chains]
    return page(f"# Runs, tier {tier}, {num_seeds(runs)}", notes(runs, *own), *sections)


def _line(run: Run) -> list[str]:
    result = run.result
    cells = [number(result[k]) for k in ("ppl", "best_ppl", "train_s")]
    counts = [f"{result[k]:,}" for k in ("samples", *_COUNTS)]
    return [run.policy, str(run.seed), str(result["status"]), *cells, *counts]


def switches_markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page on switches: how many, and the noise scale where `cona` made few."""
    rows = [
        [r.model, r.policy, str(r.seed), *(str(r.result[k]) for k in _COUNTS)]
        for r in runs
        if r.kind != "offline"
    ]
    few = [r for r in runs if r.policy == "cona" and r.result["num_switches"] < FEW_SWITCHES]
    own = (
        "GNS*: the noise scale above which the next larger batch size makes more progress per "
        "second (method, section 3), as the decisions of the stage saw it; –: there is no such "
        "crossing. All in samples.",
        f"GNS is given for every model in which `cona` switched fewer than {FEW_SWITCHES} times: "
        + (", ".join(r.name for r in few) if few else "none")
        + ".",
    )
    counts = table(["model", "policy", "seed", "switches", "of gbs"], rows)
    details = [block for run in few for block in _noise(run)]
    return page(f"# Switches, tier {tier}, {num_seeds(runs)}", notes(runs, *own), counts, *details)


def _noise(run: Run) -> Iterator[str]:
    yield f"## {run.name}, switches: {run.result['num_switches']}"
    headers = ["strategy", "samples", "GNS in the stage", "last GNS [90 %]", "GNS*"]
    yield table([*headers, "last decision"], [_noise_line(s) for s in stage_noise(run)])


def _noise_line(stage: StageNoise) -> list[str]:
    last = "no estimate"
    if stage.last:
        low, high = stage.last["gns_low"], stage.last["gns_high"]
        ends = f"{number(low, 3)}, {'unbounded' if high is None else number(high, 3)}"
        last = f"{number(stage.last['gns'], 3)} [{ends}]"
    samples = f"{stage.first_samples:,} – {stage.last_samples:,}"
    spans = _span(stage.gns), last, _span(stage.gns_star)
    return [stage.strategy, samples, *spans, stage.reason or "–"]


def _span(values: tuple[float, float] | None) -> str:
    if values is None:
        return "–"
    low, high = (number(v, 3) for v in values)
    return low if low == high else f"{low} – {high}"
