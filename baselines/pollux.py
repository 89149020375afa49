"""Pollux: chooses the batch size of the largest goodput, by a throughput model that it learns.

Qiao et al., OSDI 2021. It knows data parallelism only, so the layout is fixed: the most data
parallel one that runs the smallest batch M0. With s = m - 1 accumulation steps,

    T = s*T_accum + (T_accum^g + T_net^g)^(1/g),   T_accum = a + b*mbs,   g in [1, 10]
    goodput(M) = M/T * (M0 + GNS)/(M + GNS)

T_net = c + d*max(dp - 2, 0) is one number here, because dp never changes; it is 0 at dp = 1. The
batch sizes are 50 from M0 to the largest in geometric steps, rounded up to multiples of dp, with
every micro-batch that fits. The largest goodput wins if it is 5 % above the current one: that is
the threshold of the authors' AdaptDL (which takes the fewest accumulation steps for granted).

Left out: its cluster scheduler (one job has all GPUs), and AdaScale, with which it scales the
learning rate of SGD (ask for it: `pollux-lr_rule=adascale`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from cona.controller.narrow import feasible, runnable_rungs, with_layout
from cona.controller.patience import Patience
from cona.cost.throughput_fit import StepTimes
from cona.policy import Decision, Details, Observation, Problem
from cona.runlog import finite
from cona.specs import LrRule
from cona.strategy import Layout, Strategy

NUM_SIZES = 50
"""Batch sizes that are compared."""

THRESHOLD = 1.05
"""Gain in goodput that is worth a change, after AdaptDL."""


@dataclass(kw_only=True)
class Pollux:
    """argmax goodput over batch sizes and micro-batches of one layout, once in a while.

    ASSUMED: as often as the tier lets `cona` switch (Pollux: every 30 seconds).
    """

    name: ClassVar[str] = "pollux"
    kind: ClassVar[str] = "online"
    summary: ClassVar[str] = "gbs of the largest goodput, by a fitted throughput model; one layout"
    source: ClassVar[str] = "Pollux (Qiao et al., OSDI 2021)"

    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    belief: str | None = None
    """Time model that says what fits into memory; its times are not used. None: the tier's."""
    _candidates: list[Strategy] = field(init=False, repr=False)
    _times: StepTimes = field(init=False, repr=False)
    _patience: Patience = field(init=False, repr=False)
    _gbs_0: int = field(init=False, repr=False)

    def start(self, problem: Problem) -> Strategy:
        """Return the smallest batch in the fewest accumulation steps that fit."""
        narrow = with_layout(problem, most_data_parallel(problem))
        self._gbs_0 = narrow.rungs[0]
        self._candidates = _candidates(narrow)
        self._times, self._patience = StepTimes(), Patience(problem)
        return min(
            (s for s in self._candidates if s.gbs == self._gbs_0),
            key=lambda s: s.num_microbatches,
        )

    def decide(self, observation: Observation) -> Decision:
        """Return the strategy of the largest goodput, if that is 5 % above the current one."""
        if observation.tells_time:
            self._times.add(observation.strategy, observation.iteration_s)
        if wait := self._patience.wait(observation):
            return wait
        gns = observation.gns.gns
        if gns is None:
            return Decision(strategy=None, reason="no GNS estimate yet")
        if self._times.is_empty:
            return Decision(strategy=None, reason="no iteration was timed yet", quiet=True)
        self._patience.begin(observation)
        fit = self._times.fit()
        current = self._goodput(observation.strategy, fit(observation.strategy), gns)
        goodputs = np.array([self._goodput(s, fit(s), gns) for s in self._candidates])
        winner = self._candidates[int(np.argmax(goodputs))]
        gain = float(goodputs.max()) / current
        reason = f"goodput {gain:.3f} times the current one"
        switch = winner if gain > THRESHOLD and winner != observation.strategy else None
        details: Details = {
            "gns": gns,
            "gain": finite(gain),
            "t_next_s": finite(fit(winner)),
            "next": str(winner),
        }
        return Decision(strategy=switch, reason=reason, details=details)

    def _goodput(self, strategy: Strategy, iteration_s: float, gns: float) -> float:
        gbs = strategy.gbs
        return gbs / iteration_s * (self._gbs_0 + gns) / (gbs + gns)


def most_data_parallel(problem: Problem) -> Layout:
    """Return the layout with the largest dp that runs the smallest runnable rung.

    ASSUMED: where pure data parallelism does not fit, the least model parallelism that does; of
    equals, the least pipeline.
    """
    found = feasible(problem, runnable_rungs(problem)[0])
    return max((s.layout for s in found), key=lambda layout: (layout.dp, -layout.pp))


def _candidates(narrow: Problem) -> list[Strategy]:
    """Return every feasible strategy of the batch sizes, smallest first."""
    dp = narrow.space.layouts[0].dp
    smallest, largest = narrow.rungs[0], narrow.rungs[-1]
    sizes = np.geomspace(smallest, largest, NUM_SIZES)
    # Half a sample of rounding error must not make an exact size one larger.
    rounded = sorted({dp * math.ceil(size / dp - 1e-9) for size in sizes})
    return [strategy for gbs in rounded for strategy in feasible(narrow, gbs)]
