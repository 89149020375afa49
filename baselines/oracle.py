"""The greedy oracle: at every decision point it tries the candidates and keeps the best.

It forks the training state in memory, so it sees what no policy can. It is greedy and hence not a
bound. Source: method.md 9; the paper's per-iteration oracle is `tier.oracle.decisions: null`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cona.cost import TimeModel
from cona.policy import Decision, Details, Observation, Prober, Problem
from cona.runlog import finite
from cona.search import best
from cona.specs import LrRule
from cona.strategy import Strategy


@dataclass(kw_only=True)
class GreedyOracle:
    """Commits, for one interval, to the batch size whose fork lowered log perplexity fastest."""

    name: ClassVar[str] = "greedy-oracle"
    kind: ClassVar[str] = "bound"
    summary: ClassVar[str] = "forks the state at each decision point and keeps the best batch size"
    source: ClassVar[str] = "CONA (Kang et al. 2026), method.md 9"

    lr_rule: LrRule | None = None
    """Learning-rate rule; None: the tier's."""
    _problem: Problem = field(init=False, repr=False)
    _probe: Prober = field(init=False, repr=False)
    _reference: TimeModel = field(init=False, repr=False)
    _best: dict[int, Strategy] = field(init=False, repr=False)
    _interval_s: float = field(init=False, repr=False)
    _iterations_left: int = field(init=False, repr=False, default=0)

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
        return self._commit(list(self._best))[0]

    def decide(self, observation: Observation) -> Decision:
        """Fork at a decision point; between two of them, stay."""
        self._iterations_left -= 1
        if self._iterations_left > 0:
            return Decision(strategy=None, reason="inside a committed interval", quiet=True)
        current = observation.strategy
        winner, scores = self._commit(self._forks(current.gbs))
        details: Details = {f"score_gbs{g}": finite(s) for g, s in scores.items()}
        details["next"] = str(winner)
        switch = winner if winner != current else None
        return Decision(strategy=switch, reason=f"gbs {winner.gbs} won the forks", details=details)

    def _forks(self, gbs: int) -> list[int]:
        if self._problem.tier.oracle.forks == "ladder":
            return list(self._best)
        return [g for g in self._best if gbs // 2 <= g <= gbs * 2]

    def _commit(self, candidates: list[int]) -> tuple[Strategy, dict[int, float]]:
        before = self._probe([])
        scores = {gbs: self._score(gbs, before) for gbs in candidates}
        winner = max(scores, key=lambda gbs: scores[gbs])
        self._iterations_left = self._num_iterations(winner)
        return self._best[winner], scores

    def _num_iterations(self, gbs: int) -> int:
        return max(1, round(self._interval_s / self._iteration_s(self._best[gbs])))

    def _score(self, gbs: int, before: float) -> float:
        """Return the fall of log perplexity per second of a fork."""
        iterations = self._num_iterations(gbs)
        after = self._probe([(gbs, iterations)])
        return (before - after) / (iterations * self._iteration_s(self._best[gbs]))
