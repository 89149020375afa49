"""How every speed-up of `cona` depends on the gradient noise scale.

Two questions that differ:
- *believed*: what if the controller's GNS were wrong by a factor? Real runs, `cona-noise<factor>`.
- *modelled*: what if the model's GNS were larger by a factor? Nothing is trained: the noise that
  `cona` recorded is scaled, and the time to the same progress in noiseless steps is compared
  (`cona.replay.progress`), of `cona` replayed on it and of every fixed batch size.

Source: method.md 7, Scale caveat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cona import config
from cona.analysis.groups import METHOD, by_model
from cona.analysis.load import Run
from cona.analysis.repricing import Reference, check_same, reference_of
from cona.analysis.speedup import Speedup, speedups
from cona.analysis.ttp import headline_target, ttp_rows
from cona.errors import ConaError
from cona.replay.progress import ProgressNoise, chain_time_s, fixed_time_s
from cona.replay.replay import ReplayRequest, replay
from cona.replay.trace import read_recording
from cona.specs import TierSpec

FACTORS = (0.25, 1.0, 4.0, 16.0)
"""Factors of the GNS. Source: method.md 7."""
BUDGETS = (1.25, 5.0)
"""A replayed chain gets the time of the best fixed batch size so many times; the second if it does
not end in the first."""
_NOISE = re.compile(rf"{METHOD}(?:-noise(\d+(?:\.\d+)?))?")


def believed_factor(policy: str) -> float | None:
    """Return by which factor a `cona` misjudges the GNS, 1 for `cona`; None for other policies."""
    match = _NOISE.fullmatch(policy)
    return float(match[1] or 1.0) if match else None


def believed(group: Sequence[Run]) -> list[Speedup]:
    """Return the speed-ups of every `cona-noise<factor>` and `cona` at the headline target.

    Args:
        group: runs of one model.
    """
    rows = ttp_rows(group)
    headline = headline_target(rows)
    found = speedups([row for row in rows if row.target == headline])
    return [s for s in found if believed_factor(s.method) is not None]


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Times to the progress of a recorded `cona` run, had its model's noise been larger."""

    run: Run
    """Whose noise was recorded."""
    factor: float
    """Of the recorded GNS."""
    chain_s: float | None
    """Seconds of `cona` on the scaled noise, switches included; None: its budget ended before."""
    num_switches: int
    """Strategy changes of that chain, up to the end of its budget."""
    fixed_s: dict[int, float]
    """Seconds of the fastest strategy of every batch size."""

    def speedup(self, gbs: int | None = None) -> float | None:
        """Return the speed-up over a fixed batch size; None: over the best one in hindsight."""
        fixed_s = min(self.fixed_s.values()) if gbs is None else self.fixed_s[gbs]
        return None if self.chain_s is None else fixed_s / self.chain_s

    @property
    def best_gbs(self) -> int:
        """The fastest fixed batch size, samples."""
        return min(self.fixed_s, key=lambda gbs: self.fixed_s[gbs])


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """One model's answers to both questions."""

    model: str
    metric: str
    headline: float | None
    """The headline target, that `believed` is at."""
    believed: list[Speedup]
    """Of `cona` and every `cona-noise<factor>` over every offline policy."""
    modelled: list[Modelled]
    """For every factor; on the noise of one `cona` run, of the first seed."""
    why_none: str | None
    """Why nothing could be modelled; None: it could."""


def sensitivities(runs: Sequence[Run]) -> list[Sensitivity]:
    """Return the sensitivity of every model that `cona` trained."""
    groups = by_model(runs).values()
    return [_sensitivity(g) for g in groups if any(r.policy == METHOD for r in g)]


def _sensitivity(group: Sequence[Run]) -> Sensitivity:
    ours = [run for run in group if run.policy == METHOD]
    found: list[Modelled] = []
    why_none = None
    try:
        found = list(_modelled(ours[0]))
    except ConaError as error:  # a sentence for the table: what was trained is shown all the same
        why_none = str(error)
    return Sensitivity(
        model=group[0].model,
        metric=group[0].metric,
        headline=headline_target(ttp_rows(group)),
        believed=believed(group),
        modelled=found,
        why_none=why_none,
    )


def _modelled(run: Run) -> Iterator[Modelled]:
    reference = reference_of(run)
    check_same(run, reference)
    tier = config.validate(TierSpec, run.tier_config, where=f"{run.path / 'run.json'}")
    recorded = ProgressNoise.of(read_recording(run.path / "metrics.jsonl"))
    for factor in FACTORS:
        yield _at_factor(run, factor, recorded.scaled(factor), tier, reference)


def _at_factor(
    run: Run, factor: float, noise: ProgressNoise, tier: TierSpec, reference: Reference
) -> Modelled:
    iteration_s = {g: reference.time.time_s(reference.fastest(g)) for g in tier.ladder.rungs}
    fixed_s = {gbs: fixed_time_s(gbs, seconds, noise) for gbs, seconds in iteration_s.items()}
    for budget in BUDGETS:
        budget_s = budget * min(fixed_s.values())
        iterations = math.ceil(budget_s / iteration_s[tier.ladder.gbs_min])
        longer = config.override(tier, {"budget.iterations": iterations})
        done = replay(ReplayRequest(tier=longer, model=run.model, policy=METHOD), noise)
        chain_s = chain_time_s(done.stages, noise)
        if chain_s is not None:
            break
    return Modelled(
        run=run,
        factor=factor,
        chain_s=chain_s,
        num_switches=len(done.stages) - 1,
        fixed_s=fixed_s,
    )
