"""A recorded trajectory at another layout: the same losses, other seconds, by the reference clock.

Source: method.md 7, Attribution. Losses depend on the sequence of batch sizes only, so a run's
evaluations stand and each of its iterations is priced anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cona import config
from cona.analysis.load import Curve, Run
from cona.cost import TimeModel, time_model
from cona.cost.switch import PRESETS
from cona.errors import RunError
from cona.search import best
from cona.specs import ClusterSpec, LadderSpec, ModelSpec, Spec
from cona.strategy import Layout, Strategy, StrategySpace, Techniques

SAME = 1e-9
"""Relative difference that rounding may make between a recorded T and the same T today."""

SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The reference clock of a run, and the strategies that it can price."""

    time: TimeModel
    space: StrategySpace
    _fastest: dict[tuple[Layout | None, int], Strategy] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def parse(self, text: str) -> Strategy:
        """Return a strategy of the results, with the techniques that it was priced with."""
        return replace(Strategy.parse(text), techniques=self.space.techniques)

    def fastest(self, gbs: int, layout: Layout | None = None) -> Strategy:
        """Return the fastest strategy of a batch size, of one layout or of all.

        Raises:
            ConfigError: none is feasible.
            RunError: the layout does not divide the batch size.
        """
        if (layout, gbs) not in self._fastest:
            found = [s for s in self.space.at(gbs) if layout in (None, s.layout)]
            if not found:
                raise RunError(f"{layout or 'no layout'} does not divide gbs {gbs}")
            self._fastest[layout, gbs] = best(found, self.time)[0]
        return self._fastest[layout, gbs]


def reference_of(run: Run) -> Reference:
    """Return the reference clock that a run was made under, from its run.json.

    Raises:
        RunError: run.json does not say.
        ConfigError: the time source is gone.
    """
    model = _spec(ModelSpec, run, run.info.get("priced_model"))
    cluster = _spec(ClusterSpec, run, run.info.get("cluster"))
    tier = run.tier_config
    return Reference(
        time=time_model(str(run.clock["time_source"]), model, cluster),
        space=StrategySpace(
            model=model,
            num_gpus=cluster.num_gpus,
            ladder=_spec(LadderSpec, run, tier.get("ladder")),
            techniques=Techniques(**tier.get("techniques", {})),
        ),
    )


def _spec(kind: type[SpecT], run: Run, content: Any) -> SpecT:
    if not isinstance(content, dict):
        raise RunError(f"{run.name}: run.json does not hold what it was priced by; run it again")
    return config.validate(kind, content, where=f"{run.path / 'run.json'}")


def check_same(run: Run, reference: Reference) -> None:
    """Raise RunError if a run's first iteration was charged otherwise than it is priced now."""
    for step in run.steps[:1]:
        strategy = reference.parse(step["strategy"])
        rule = reference.time.why_not(strategy)
        now_s = math.inf if rule else reference.time.time_s(strategy)
        if not math.isclose(now_s, step["iteration_s"], rel_tol=SAME):
            raise RunError(
                f"{run.name}: {strategy} was charged {step['iteration_s']:.6g} s but this version, "
                f"under the tier's techniques, gives {rule or f'{now_s:.6g} s'}; run it again"
            )


def retimed(run: Run, reference: Reference, layout: Layout) -> Curve:
    """Return the run's evaluations with every iteration at one layout, so without any switch.

    At each batch size the layout takes its fastest micro-batch.

    Args:
        run: whose sequence of batch sizes, and losses, stand.
        reference: its clock.
        layout: dp, tp and pp of every iteration.

    Raises:
        ConfigError: the layout is infeasible at one of the batch sizes.
        RunError: it does not divide one of them.
    """
    sizes = [int(step["gbs"]) for step in run.steps]
    seconds = {g: reference.time.time_s(reference.fastest(g, layout)) for g in set(sizes)}
    after = list(accumulate((seconds[gbs] for gbs in sizes), initial=0.0))
    at = _array(after[int(e["iteration"])] for e in run.evals if e["ppl"] is not None)
    nothing = {str(preset): 0.0 * at for preset in PRESETS}
    return replace(run.curve, train_s=at, compute_s=at, wall_s=at, switch_s=nothing)


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)
