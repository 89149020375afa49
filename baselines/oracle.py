"""The greedy oracle: at every decision point it tries the candidates and keeps the best.

It forks the training state in memory, so it sees what no policy can. It is greedy and hence not a
bound. `greedy-oracle-lookahead=2` scores every sequence of two intervals and commits to the first
interval of the best (the forks' number grows as a power), `greedy-oracle-charged=on` adds the
clock's switch costs to a fork's seconds.

The seconds of a fork, and hence its length, are the reference time source's on both clocks: on real
ranks what was measured corrects nothing, so a table of measured iterations is the source to give.
Source: method.md 9; the paper's per-iteration oracle is `tier.oracle.decisions: null`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from cona.cost import TimeModel
from cona.errors import ConfigError
from cona.policy import Decision, Details, Observation, Prober, Problem
from cona.runlog import finite
from cona.search import best
from cona.specs import LrRule
from cona.strategy import Strategy

LARGEST_LOOKAHEAD = 4
"""Six batch sizes give 1,296 forks of four intervals at every decision: no one waits for more."""


@dataclass(kw_only=True)
class GreedyOracle:
    """Commits, for one interval, to the batch size whose fork lowered log perplexity fastest."""

    name: ClassVar[str] = "greedy-oracle"
    kind: ClassVar[str] = "bound"
    summary: ClassVar[str] = "forks the state at each decision point and keeps the best batch size"
    source: ClassVar[str] = "CONA (Kang et al. 2026), method.md 9"

    lookahead: int = 1
    """Intervals that every fork runs; the first of the best sequence is committed."""
    charged: bool = False
    """Count the switches of a fork among its seconds."""
    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _probe: Prober = field(init=False, repr=False)
    _reference: TimeModel = field(init=False, repr=False)
    _best: dict[int, Strategy] = field(init=False, repr=False)
    _interval_s: float = field(init=False, repr=False)
    _iterations_left: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        if not 1 <= self.lookahead <= LARGEST_LOOKAHEAD:
            raise ConfigError(
                f"greedy-oracle-lookahead{self.lookahead}: must be between 1 and "
                f"{LARGEST_LOOKAHEAD}"
            )

    def attach(self, probe: Prober) -> None:
        """Give the oracle its look-ahead."""
        self._probe = probe

    def know(self, reference: TimeModel) -> None:
        """Give the oracle the reference clock: its layouts are the best in truth."""
        self._reference = reference

    def _iteration_s(self, strategy: Strategy) -> float:
        return self._reference.time_s(strategy)

    def start(self, problem: Problem) -> Strategy:
        """Return the winner of the first forks; any batch size may start."""
        self._problem = problem
        self._best = {g: best(problem.space.at(g), self._reference)[0] for g in problem.rungs}
        decisions = problem.tier.oracle.decisions
        largest_s = self._iteration_s(self._best[max(self._best)])
        if decisions is None:
            self._interval_s = 0.0
        else:
            self._interval_s = max(problem.time_budget_s / decisions, largest_s)
        return self._commit(None)[0]

    def decide(self, observation: Observation) -> Decision:
        """Fork at a decision point; between two of them, stay."""
        self._iterations_left -= 1
        if self._iterations_left > 0:
            return Decision(strategy=None, reason="inside a committed interval", quiet=True)
        current = observation.strategy
        winner, scores = self._commit(current)
        details: Details = {f"score_gbs{g}": finite(s) for g, s in scores.items()}
        details["next"] = str(winner)
        switch = winner if winner != current else None
        return Decision(strategy=switch, reason=f"gbs {winner.gbs} won the forks", details=details)

    def _forks(self, gbs: int | None) -> list[int]:
        """Return the batch sizes to try after one of ``gbs`` samples; None: at the start."""
        if gbs is None or self._problem.tier.oracle.forks == "ladder":
            return list(self._best)
        return [g for g in self._best if gbs // 2 <= g <= gbs * 2]

    def _sequences(self, gbs: int | None, length: int) -> Iterator[tuple[int, ...]]:
        """Yield every sequence of batch sizes, one for each interval."""
        if length == 0:
            yield ()
            return
        for first in self._forks(gbs):
            for rest in self._sequences(first, length - 1):
                yield (first, *rest)

    def _commit(self, current: Strategy | None) -> tuple[Strategy, dict[int, float]]:
        """Return the winner of the next interval, and each batch size's best score as the next."""
        before = self._probe([(current or self._best[min(self._best)], 0)])
        scores: dict[int, float] = {}
        for sequence in self._sequences(current.gbs if current else None, self.lookahead):
            score = self._score(sequence, before, current)
            scores[sequence[0]] = max(score, scores.get(sequence[0], -math.inf))
        winner = max(scores, key=lambda gbs: scores[gbs])
        self._iterations_left = self._num_iterations(winner)
        return self._best[winner], scores

    def _num_iterations(self, gbs: int) -> int:
        return max(1, round(self._interval_s / self._iteration_s(self._best[gbs])))

    def _score(self, sequence: tuple[int, ...], before: float, current: Strategy | None) -> float:
        """Return the fall of log perplexity per second of a fork; one that diverges loses."""
        fork = [(self._best[gbs], self._num_iterations(gbs)) for gbs in sequence]
        after = self._probe(fork)
        if not math.isfinite(after):
            return -math.inf
        seconds = sum(n * self._iteration_s(strategy) for strategy, n in fork)
        return (before - after) / (seconds + self._switches_s(sequence, current))

    def _switches_s(self, sequence: tuple[int, ...], current: Strategy | None) -> float:
        """Return the seconds of the switches along a fork; 0 unless they are charged."""
        if not self.charged:
            return 0.0
        strategies = [self._best[gbs] for gbs in sequence]
        path = [current, *strategies] if current else strategies
        preset = self._problem.tier.clock.switch_cost
        cost = self._problem.switch_cost
        return sum(cost.seconds(old, new, preset) for old, new in pairwise(path))
