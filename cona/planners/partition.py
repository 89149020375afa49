"""Contiguous partitions of a chain of layers over GPUs, by exact dynamic programming.

A pipeline is built from its first stage to its last. A state is (weight to come, layers placed,
GPUs used); the weight of a stage is 1 where only the number of stages behind it matters, or its
data-parallel degree (Piper). Both decide how many micro-batches a stage keeps, and so what fits.

    total:      C <- t + max(C, once)   = max_i (once_i + sum_{j >= i} t_j), or sum t if once = 0
    bottleneck: C <- max(C, t)

Source: Alpa (Zheng et al. 2022), Piper (Tarnawski et al. 2021), Mist (Zhu et al. 2025); the
recurrence is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from cona.cost.gpus import Floats

Objective = Literal["total", "bottleneck"]
Cuts = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class StageOption:
    """Degrees that a stage may have."""

    dp: int
    """Data-parallel degree inside the stage."""
    tp: int
    """Tensor-parallel degree inside the stage."""
    weight: int = 1
    """What the stage adds to the weight of a pipeline."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the stage."""
        return self.dp * self.tp


@dataclass(frozen=True, kw_only=True)
class Step:
    """One stage of a pipeline that was found."""

    first: int
    """Index of its first cut: where its layers start."""
    last: int
    """Index of the cut after its layers."""
    option: int
    """Index of its degrees."""
    to_come: int
    """Weight of this stage and of all after it."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A pipeline that was found."""

    cost: float
    """The objective's value."""
    steps: tuple[Step, ...]
    """Stages, first to last."""


Prices = Callable[[int, int], tuple[Floats, Floats | float]]
"""By (option, weight to come): seconds of every stage and once per iteration, [cuts, cuts]."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The question: the cheapest pipeline that uses up all layers and GPUs."""

    options: Sequence[StageOption]
    """Degrees that any stage may have."""
    prices: Prices
    """What a stage costs; infinite where it does not fit."""
    num_cuts: int
    """Places where the chain may be cut, its two ends included."""
    num_gpus: int
    """GPUs that a pipeline uses up."""
    max_weight: int
    """Largest weight of a pipeline."""

    def best(self, objective: Objective, *, slowest_s: float = math.inf) -> Chain | None:
        """Return the cheapest pipeline, or None where no pipeline fits.

        Args:
            objective: what is minimised.
            slowest_s: seconds that no stage may exceed.
        """
        table = self._empty()
        for row in range(len(table) - 1, 0, -1):
            known, to_come = table[row], row * self._weight_unit
            reached = np.isfinite(known)
            rows, used = np.flatnonzero(reached.any(axis=1)), np.flatnonzero(reached.any(axis=0))
            for index, option in enumerate(self.options):
                rest, size = to_come - option.weight, option.num_gpus // self._gpu_unit
                before = used[used + size < table.shape[2]]
                if rest >= 0 and before.size:
                    costs = self._extended(
                        known[np.ix_(rows, before)], rows, index, to_come, objective, slowest_s
                    )
                    ahead = table[rest // self._weight_unit]
                    ahead[:, before + size] = np.minimum(ahead[:, before + size], costs.min(axis=0))
        cost = float(table[0, -1, -1])
        if not math.isfinite(cost):
            return None
        return Chain(cost=cost, steps=self._steps(table, objective, slowest_s))

    @cached_property
    def _gpu_unit(self) -> int:
        """Every stage and the whole take a multiple of it: tables have no other rows."""
        return math.gcd(self.num_gpus, *(option.num_gpus for option in self.options))

    @cached_property
    def _weight_unit(self) -> int:
        """Every weight is a multiple of it."""
        return math.gcd(*(option.weight for option in self.options))

    def _empty(self) -> Floats:
        """Costs of all states before the first stage, [weight to come, cut, GPUs used]."""
        shape = self.max_weight // self._weight_unit, self.num_gpus // self._gpu_unit
        table = np.full((shape[0] + 1, self.num_cuts, shape[1] + 1), np.inf)
        table[1:, 0, 0] = 0.0  # a pipeline may start with any weight to come
        return table

    def by_bottleneck(
        self, num_microbatches: int, *, at_most_s: float = math.inf
    ) -> Iterator[tuple[float, Chain]]:
        """Yield pipelines and their T = total + (m-1) * slowest stage; the fastest is among them.

        The total under a bound on the slowest stage falls as the bound rises. So bounds between
        two others need no look if the lower bound with the total of the upper one cannot win.

        Args:
            num_microbatches: m.
            at_most_s: seconds that are known to be possible already.
        """
        loosest, tightest = self.best("total"), self.best("bottleneck")
        if loosest is None or tightest is None:
            return
        others, fastest_s = num_microbatches - 1, at_most_s
        bounds_s = self._bounds_s(tightest.cost, self.slowest_s(loosest))
        yield loosest.cost + others * self.slowest_s(loosest), loosest
        fastest_s = min(fastest_s, loosest.cost + others * self.slowest_s(loosest))
        between = [(0, len(bounds_s), loosest.cost)]
        while between:
            low, high, total_s = between.pop()
            if low == high or others * bounds_s[low] + total_s >= fastest_s:
                continue
            middle = (low + high) // 2
            if chain := self.best("total", slowest_s=bounds_s[middle]):
                time_s = chain.cost + others * self.slowest_s(chain)
                fastest_s = min(fastest_s, time_s)
                yield time_s, chain
                between += [(middle + 1, high, total_s), (low, middle, chain.cost)]

    def slowest_s(self, chain: Chain) -> float:
        """Return the seconds of a pipeline's slowest stage."""
        return max(
            float(self.prices(step.option, step.to_come)[0][step.first, step.last])
            for step in chain.steps
        )

    def _bounds_s(self, from_s: float, below_s: float) -> Floats:
        """Every time of a stage in [from_s, below_s), ascending."""
        weights = range(1, self.max_weight + 1)
        found = [self.prices(i, w)[0].ravel() for i in range(len(self.options)) for w in weights]
        times_s = np.unique(np.concatenate(found))
        return times_s[(times_s >= from_s) & (times_s < below_s)]

    def _extended(
        self,
        known: Floats,
        rows: Cuts,
        index: int,
        to_come: int,
        objective: Objective,
        slowest_s: float,
    ) -> Floats:
        """Costs after one more stage from cuts ``rows``, shape [rows, cut after, GPUs before]."""
        seconds, once = self.prices(index, to_come)
        stage = np.where(seconds <= slowest_s, seconds, np.inf)[rows, :, None]
        if objective == "bottleneck":
            return np.maximum(known[:, None, :], stage)
        if isinstance(once, float):
            return np.maximum(known, once)[:, None, :] + stage
        return np.maximum(known[:, None, :], once[rows, :, None]) + stage

    def _steps(self, table: Floats, objective: Objective, slowest_s: float) -> tuple[Step, ...]:
        """Walk back from the end: which stage led to each state."""
        steps: list[Step] = []
        last, gpus, rest = self.num_cuts - 1, self.num_gpus, 0
        while last > 0:
            step = self._step_to(table, (rest, last, gpus), objective, slowest_s)
            steps.insert(0, step)
            last, rest = step.first, step.to_come
            gpus -= self.options[step.option].num_gpus
        return tuple(steps)

    def _step_to(
        self, table: Floats, state: tuple[int, int, int], objective: Objective, slowest_s: float
    ) -> Step:
        rest, last, gpus = state
        found: list[tuple[float, Step]] = []
        for index, option in enumerate(self.options):
            to_come, before = rest + option.weight, gpus - option.num_gpus
            if to_come // self._weight_unit >= len(table) or before < 0:
                continue
            known = table[to_come // self._weight_unit, :, [before // self._gpu_unit]].T
            rows = np.arange(last)
            costs = self._extended(known[:last], rows, index, to_come, objective, slowest_s)
            first = int(np.argmin(costs[:, last, 0]))
            step = Step(first=first, last=last, option=index, to_come=to_come)
            found.append((float(costs[first, last, 0]), step))
        return min(found, key=lambda pair: pair[0])[1]
