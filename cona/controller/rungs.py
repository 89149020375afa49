"""Where the paper's rule takes each batch size's fastest strategy from: two ways of searching.

Source: method.md 4.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol

from cona.bo import BayesianSearch
from cona.controller.stage import best_per_rung
from cona.policy import Problem
from cona.strategy import Strategy

SearchKind = Literal["exhaustive", "bo"]


class RungSearch(Protocol):
    """Finds the fastest strategy of a batch size, by the policy's belief."""

    search_s: float
    """Wall-clock seconds spent; a bucket of its own, outside the clocks."""

    def start(self) -> Strategy:
        """Return the initial strategy, at the smallest batch."""

    def advance(self, gbs: int) -> None:
        """Do one training iteration's share of the search at a batch size."""

    def found(self, gbs: int) -> tuple[Strategy, float] | None:
        """Return a batch size's strategy and its T in seconds; None while it is sought."""

    def reopen(self, gbs: int) -> None:
        """Seek a batch size's strategy anew."""


class ExhaustiveRungs:
    """Every strategy of every rung is priced at the start; nothing is left to seek."""

    def __init__(self, problem: Problem) -> None:
        began_s = time.perf_counter()
        self._best = best_per_rung(problem)
        self.search_s = time.perf_counter() - began_s

    def start(self) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        return self._best[min(self._best)][0]

    def advance(self, gbs: int) -> None:
        """Do nothing: the search is over."""

    def found(self, gbs: int) -> tuple[Strategy, float] | None:
        """Return a batch size's fastest strategy and its T in seconds."""
        return self._best[gbs]

    def reopen(self, gbs: int) -> None:
        """Do nothing: an exact search has one answer."""


class BayesianRungs:
    """Bayesian optimisation, one evaluation per training iteration; a rung is found when it stops.

    Args:
        problem: what the policy knows; an evaluation is its belief's T.
        seed: of the first points.

    Source: method.md 4, `bo`
    """

    def __init__(self, problem: Problem, *, seed: int = 0) -> None:
        self._problem, self._seed = problem, seed
        self._searches: dict[int, BayesianSearch] = {}
        self._num_reopened = 0
        self.search_s = 0.0

    def start(self) -> Strategy:
        """Return the best of the first points at the smallest batch; the search ends there."""
        began_s = time.perf_counter()
        search = self._search(min(self._problem.rungs))
        for _ in range(search.num_first):
            self._evaluate(search)
        self.search_s += time.perf_counter() - began_s
        return search.best[0]

    def advance(self, gbs: int) -> None:
        """Evaluate one strategy of a batch size, unless its search is over."""
        began_s = time.perf_counter()
        self._evaluate(self._search(gbs))
        self.search_s += time.perf_counter() - began_s

    def found(self, gbs: int) -> tuple[Strategy, float] | None:
        """Return a batch size's best strategy and its T in seconds once its search is over."""
        search = self._searches.get(gbs)
        return search.best if search and search.stopped else None

    def reopen(self, gbs: int) -> None:
        """Forget a batch size's search: the next one starts from other points."""
        self._num_reopened += 1
        self._searches.pop(gbs, None)

    def _search(self, gbs: int) -> BayesianSearch:
        if gbs not in self._searches:
            why_not = self._problem.belief.why_not
            feasible = [s for s in self._problem.space.at(gbs) if why_not(s) is None]
            seed = self._seed + self._num_reopened
            self._searches[gbs] = BayesianSearch(feasible, seed=seed)
        return self._searches[gbs]

    def _evaluate(self, search: BayesianSearch) -> None:
        if strategy := search.propose():
            search.tell(strategy, self._problem.belief.time_s(strategy))


def rung_search(problem: Problem, kind: SearchKind, *, seed: int = 0) -> RungSearch:
    """Return the search of a kind; raises ConfigError if `bo` lacks botorch."""
    return ExhaustiveRungs(problem) if kind == "exhaustive" else BayesianRungs(problem, seed=seed)
