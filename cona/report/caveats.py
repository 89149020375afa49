"""What the numbers of a report do not say, and what each tier can say at all."""

from __future__ import annotations

from collections.abc import Sequence

from cona import config
from cona.analysis.load import Run
from cona.analysis.markdown import yes
from cona.analysis.notes import (
    bound_sentences,
    clock_caveats,
    proxy_sentences,
    status_sentences,
)
from cona.report.shapes import Table
from cona.specs import TierSpec

_MODELLED = (
    "No second of a modelled clock is measured. Training is real; the clock adds the seconds that "
    "a cost model gives the accounted strategy on the target cluster."
)
_MEASURED = (
    "A measured second is a wall second of the ranks that ran here. Other hardware, other seconds."
)
_ALWAYS = (
    "Not reached is a state and never a number; a speed-up over it is a lower bound (≥).",
    "Few seeds: an interval is shown from three on, and it is of seeds, not of texts or models.",
)
_SAYS = {
    "smoke": "that the pipeline works, and nothing about CONA",
    "quick": "what a comparison looks like; one seed of small models, so no verdict",
    "proxy": "whether the method works on small models whose seconds are modelled as large ones'",
    "paper": "what the paper claims, on full-size models and measured seconds",
}


def of_runs(runs: Sequence[Run]) -> list[str]:
    """Return the caveats of a set of runs, one sentence or two each."""
    kinds = {str(run.clock["kind"]) for run in runs}
    return [
        *([_MODELLED] if "modelled" in kinds else []),
        *([_MEASURED] if "measured" in kinds else []),
        *proxy_sentences(runs),
        *clock_caveats(runs),
        *bound_sentences(runs),
        *status_sentences(runs),
        *_ALWAYS,
    ]


def of_tiers(tier: TierSpec) -> Table:
    """Return what each shipped tier trains and can say, and this one if it is another."""
    shipped = [config.load(TierSpec, name) for name in config.names(TierSpec)]
    tiers = shipped if any(one.name == tier.name for one in shipped) else [*shipped, tier]
    return Table(
        head=("tier", "trains", "gives verdicts", "says"),
        rows=tuple(_row(one, one.name == tier.name) for one in tiers),
    )


def _row(tier: TierSpec, is_this: bool) -> tuple[str, ...]:
    name = f"{tier.name} (this report)" if is_this else tier.name
    says = _SAYS.get(tier.name, "what its settings say: a tier of its own")
    return name, tier.description, yes(tier.gives_verdicts), says
