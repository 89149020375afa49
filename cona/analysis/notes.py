"""What every table and figure must say about itself: clock, models, n, centre and interval.

Source: method.md 7, architecture.md, Style 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cona.analysis.groups import BOUND, by_model, by_policy, unique
from cona.analysis.load import Run
from cona.analysis.statistics import CONFIDENCE, MIN_FOR_INTERVAL

INTERVAL = (
    "Pairs share a seed. Centre: median over seeds; points: all seeds; interval: "
    f"{CONFIDENCE:.0%} t interval of the log ratio, only with n >= {MIN_FOR_INTERVAL} "
    "and only if every pair has a ratio."
)
"""What a ratio's centre and interval are."""
HEADLINE = (
    "**Bold**: the headline target, the lowest that the best fixed strategy (without one: any run) "
    "reached at every seed."
)
"""What the bold column is."""
_SHOWN = "Every finished run found under `results/<tier>/<model>/` is shown."
_CORPORA = {"stdlib": "`stdlib`, the source of Python's standard library"}


def num_seeds(runs: Sequence[Run]) -> str:
    """Return the n of a set of runs as text, e.g. ``n = 1 (one seed: no interval)``."""
    counts = sorted(
        {len(group) for m in by_model(runs).values() for group in by_policy(m).values()}
    )
    if counts == [1]:
        return "n = 1 (one seed: no interval)"
    if len(counts) == 1:
        return f"n = {counts[0]} seeds"
    return f"n = {counts[0]} to {counts[-1]} seeds, by policy"


def common_sentences(runs: Sequence[Run]) -> list[str]:
    """Return what both tables and figures say: clock, text, proxies, bounds, diverged runs."""
    return [
        clock_sentence(runs),
        data_sentence(runs),
        *proxy_sentences(runs),
        *bound_sentences(runs),
        *status_sentences(runs),
    ]


def clock_sentence(runs: Sequence[Run]) -> str:
    """Return one sentence on what a second is and who knows it."""
    clocks = [r.clock for r in runs]
    kind, source, cost, cluster = (
        _listed(str(c[key]) for c in clocks)
        for key in ("kind", "time_source", "switch_cost", "cluster")
    )
    beliefs = _listed(str(r.result["belief"]) for r in runs)
    return (
        f"Clock: {kind}, time source {source} on {cluster}, switch cost {cost}; "
        f"the policies believe {beliefs}."
    )


def data_sentence(runs: Sequence[Run]) -> str:
    """Return one sentence on the text trained on and the hash of its tokens, by model."""
    texts = unique(_CORPORA.get(r.corpus or "", f"`{r.corpus}`") for r in runs if r.corpus)
    models: dict[str, list[str]] = {}
    for model, group in by_model(runs).items():
        models.setdefault(str(group[0].result["data_hash"]), []).append(model)
    named = (f"`{h}`" + f" ({', '.join(m)})" * (len(models) > 1) for h, m in models.items())
    return f"Text: {' / '.join(texts) or 'not recorded'}; data hash {', '.join(named)}."


def clock_caveats(runs: Sequence[Run]) -> list[str]:
    """Return the caveats that a modelled clock needs; empty for a measured one."""
    if all(r.clock["kind"] != "modelled" for r in runs):
        return []
    sources = unique(str(r.clock["time_source"]) for r in runs)
    notes = [
        "Layouts do not change training: runs with the same sequence of global batch sizes share "
        "one trajectory, re-timed."
    ]
    if any(s.startswith("calculon") for s in sources):
        notes.append(
            f"{_listed(sources)} prices by Calculon's equations (`+head`: and the LM head), which "
            "no measured iteration has calibrated: seconds are modelled, not measured."
        )
    if {str(r.result["belief"]) for r in runs} == set(sources):
        notes.append(
            "Belief and time source are one model: what wrong predictions would cost is not shown."
        )
    return notes


def proxy_sentences(runs: Sequence[Run]) -> list[str]:
    """Return, for each proxy, which model its samples are priced as."""
    priced = {r.model: r.clock.get("priced_as") for r in runs}
    pairs = [f"{m} as {p}" for m, p in priced.items() if p and p != m]
    if not pairs:
        return []
    return [
        f"Samples are priced as a full-size model's ({', '.join(pairs)}): losses and noise scales "
        "are small models', seconds large ones', so ratios need not carry over."
    ]


def bound_sentences(runs: Sequence[Run]) -> list[str]:
    """Return a sentence that names the bounds, which are no methods, if there are any."""
    bounds = unique(f"`{r.policy}`" for r in runs if r.kind == BOUND)
    if not bounds:
        return []
    return [f"Bounds, not methods: {', '.join(bounds)}; they train ahead at no cost on the clock."]


def status_sentences(runs: Sequence[Run]) -> list[str]:
    """Return a sentence that names the diverged runs, if there are any."""
    diverged = [r.name for r in runs if r.result["status"] == "diverged"]
    return [f"Diverged: {', '.join(diverged)}."] if diverged else []


def notes(runs: Sequence[Run], *own: str) -> str:
    """Return the Markdown list under a table's title: the clock, caveats, and its own notes."""
    lines = [*common_sentences(runs), *clock_caveats(runs), _SHOWN, *own]
    return "\n".join(f"- {line}" for line in lines)


def _listed(values: Iterable[str]) -> str:
    return " / ".join(f"`{v}`" for v in unique(values))
