"""Where a speed-up comes from: the sequence of batch sizes, or the layout.

    TTP(static)/TTP(run) = [TTP(static)/TTP(run's gbs sequence at static's layout)]
                         * [TTP(run's gbs sequence at static's layout)/TTP(run)]

with the best static strategy in hindsight. For a run that never switches, the best layout at its
own batch size says what its planner lost. Source: method.md 7, Attribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cona.analysis.groups import by_model, unique
from cona.analysis.load import Curve, Run
from cona.analysis.repricing import Reference, check_same, reference_of, retimed
from cona.analysis.speedup import best_static
from cona.analysis.ttp import Ttp, first_crossing, ttp_rows
from cona.errors import ConaError

State = Literal["product", "at_least", "unpriced", "not_reached", "no_static"]
"""Both factors; the first a lower bound (static unreached, its budget put in); no factors, since
the sequence has no price at the static layout; the run did not reach; no fixed-best run."""


@dataclass(frozen=True, kw_only=True)
class Retimed:
    """A TTP by re-timing, seconds; or why there is none."""

    seconds: float | None
    """None: not reached, or no price."""
    why_none: str | None = None
    """The rule that leaves it without a price."""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """One run at one target, against the best static strategy of its seed."""

    row: Ttp
    """The run."""
    static: Ttp | None
    """The fixed-best run with the smallest TTP; None: there is no fixed-best run."""
    at_static: Retimed
    """The run's sequence of batch sizes at the layout of the static strategy."""
    at_own_gbs: Retimed | None
    """The best layout at the run's own batch size; None: it has more than one."""

    @property
    def state(self) -> State:
        """What can be said."""
        if self.static is None:
            return "no_static"
        if self.row.train_s is None:
            return "not_reached"
        if self.at_static.seconds is None:
            return "unpriced"
        return "product" if self.static.crossing else "at_least"

    @property
    def static_s(self) -> float | None:
        """TTP of the static strategy in seconds; where not reached, its budget: a lower bound."""
        if self.static is None:
            return None
        reached_s = self.static.train_s
        return self.static.run.budget_s if reached_s is None else reached_s

    @property
    def schedule(self) -> float | None:
        """TTP(static)/TTP(sequence at its layout): what the batch sizes give."""
        return _ratio(self.static_s, self.at_static.seconds)

    @property
    def layout(self) -> float | None:
        """TTP(sequence at the static layout)/TTP(run): what the layouts give, switches charged."""
        return _ratio(self.at_static.seconds, self.row.train_s)

    @property
    def speedup(self) -> float | None:
        """TTP(static)/TTP(run), the product of both; with state at_least a lower bound."""
        return _ratio(self.static_s, self.row.train_s)

    @property
    def planning_loss(self) -> float | None:
        """TTP(run)/TTP(best layout at its batch size), 1 for a perfect planner."""
        return _ratio(self.row.train_s, self.at_own_gbs.seconds if self.at_own_gbs else None)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def attributions(runs: Sequence[Run]) -> list[Attribution]:
    """Return every run at every target of its model, hardest target last."""
    return [one for group in by_model(runs).values() for one in _of_model(group)]


def _of_model(group: Sequence[Run]) -> list[Attribution]:
    rows, retimer = ttp_rows(group), _Retimer()
    statics: dict[tuple[float, int], Ttp | None] = {}
    for key in unique((r.target, r.run.seed) for r in rows):
        cells = {(r.run.policy, r.run.seed): r for r in rows if r.target == key[0]}
        statics[key] = best_static(cells, key[1])
    return [_attribution(row, statics[row.target, row.run.seed], retimer) for row in rows]


def _attribution(row: Ttp, static: Ttp | None, retimer: _Retimer) -> Attribution:
    run, target = row.run, row.target
    at_static = Retimed(seconds=None, why_none="there is no fixed-best run")
    if static is not None:
        at_static = retimer.ttp(run, target, like=static.run)
    own = retimer.ttp(run, target) if run.result["num_switches"] == 0 else None
    return Attribution(row=row, static=static, at_static=at_static, at_own_gbs=own)


class _Retimer:
    """Re-times runs of one model; each curve is made once, whatever the number of targets."""

    def __init__(self) -> None:
        self._references: dict[str, Reference] = {}
        self._curves: dict[tuple[str, str | None], Curve | str] = {}

    def ttp(self, run: Run, target: float, like: Run | None = None) -> Retimed:
        """Return the TTP of a run's sequence at another run's first layout.

        Args:
            run: whose sequence of batch sizes stands.
            target: perplexity.
            like: whose layout; None: the best one at the run's own first batch size.
        """
        key = (run.name, like.name if like else None)
        if key not in self._curves:
            self._curves[key] = self._curve(run, like)
        curve = self._curves[key]
        if isinstance(curve, str):
            return Retimed(seconds=None, why_none=curve)
        crossing = first_crossing(curve, target)
        return Retimed(seconds=crossing.train_s if crossing else None)

    def _curve(self, run: Run, like: Run | None) -> Curve | str:
        try:
            reference = self._reference(run)
            first = reference.parse(first_strategy(like or run))
            strategy = first if like else reference.fastest(first.gbs)
            return retimed(run, reference, strategy.layout)
        except (
            ConaError
        ) as error:  # a sentence for the table: one run without a price stops nothing
            return str(error)

    def _reference(self, run: Run) -> Reference:
        key = str(run.result["config_hash"])
        if key not in self._references:
            self._references[key] = reference_of(run)
        check_same(run, self._references[key])
        return self._references[key]


def first_strategy(run: Run) -> str:
    """Return the strategy that a run began with; a static one has no other."""
    return str(run.result["stages"][0]["strategy"])
