"""The two searches behind the paper's rule: exact at once, or one evaluation per iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from problems import DP4, PP4, estimate, observe, problem

from cona.bo import NUM_FIRST
from cona.controller import PaperRule
from cona.controller.rungs import BayesianRungs, ExhaustiveRungs, rung_search
from cona.cost import time_model
from cona.policy import Problem
from cona.registry import policy
from cona.search import best
from cona.strategy import Strategy


class Priced:
    """Prices every strategy of the tiny space, and notes which ones were asked for."""

    name = "priced"

    def __init__(self) -> None:
        self.asked: list[Strategy] = []

    def time_s(self, strategy: Strategy) -> float:
        self.asked.append(strategy)
        layout = strategy.dp + 2 * strategy.tp + strategy.pp
        return strategy.gbs / 800 * layout * (1 + strategy.mbs / 100)

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.array([self.time_s(s) for s in strategies])

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"compute": self.time_s(strategy)}

    def why_not(self, strategy: Strategy) -> str | None:
        return "tp is above 2" if strategy.tp > 2 else None

    def origin(self, strategy: Strategy) -> str:
        return "model"


def wide_problem() -> tuple[Problem, Priced]:
    belief = Priced()
    return problem(belief), belief


def test_exhaustive_knows_every_rung_at_once() -> None:
    given = problem()
    search = ExhaustiveRungs(given)
    assert search.start() == Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
    for gbs in given.rungs:
        search.advance(gbs)
        search.reopen(gbs)
        assert search.found(gbs) == best(given.space.at(gbs), given.belief)
    assert search.search_s > 0


def test_the_first_strategy_is_the_best_of_ten_at_the_smallest_batch() -> None:
    given, belief = wide_problem()
    search = BayesianRungs(given)
    start = search.start()
    feasible = [s for s in given.space.at(8) if belief.why_not(s) is None]
    assert len(belief.asked) == min(NUM_FIRST, len(feasible))
    assert {s.gbs for s in belief.asked} == {8}
    asked_s = {s: Priced().time_s(s) for s in belief.asked}
    assert asked_s[start] == min(asked_s.values())


def test_each_iteration_evaluates_one_strategy_of_the_next_batch() -> None:
    given, belief = wide_problem()
    search = BayesianRungs(given)
    search.start()
    belief.asked.clear()
    for count in range(1, 30):
        assert search.found(16) is None
        search.advance(16)
        assert len(belief.asked) == count
        if search.found(16):
            break
    assert len(set(belief.asked)) == len(belief.asked)
    assert {s.gbs for s in belief.asked} == {16}
    strategy, time_s = search.found(16)  # type: ignore[misc]
    assert (time_s, strategy) == min((Priced().time_s(s), s) for s in belief.asked)
    search.advance(16)
    assert len(belief.asked) == count  # over


def test_a_reopened_rung_is_sought_anew() -> None:
    given, _ = wide_problem()
    search = BayesianRungs(given)
    while search.found(16) is None:
        search.advance(16)
    search.reopen(16)
    assert search.found(16) is None
    search.advance(16)
    assert search.found(16) is None


def test_the_rule_waits_for_the_search_and_then_switches() -> None:
    given, belief = wide_problem()
    rule = PaperRule(given, search=rung_search(given, "bo"))
    current = rule.start()
    belief.asked.clear()
    reasons, decision = [], None
    for i in range(1, 40):
        decision = rule.decide(observe(current, i, estimate(1e6), iteration_s=0.2))
        assert len(belief.asked) == i  # one evaluation for each iteration, from the first one on
        if decision.strategy:
            break
        reasons.append(decision.reason)
    assert decision is not None
    assert decision.strategy is not None
    assert decision.strategy.gbs == 16
    assert len(reasons) >= NUM_FIRST - 1
    assert reasons[:7] == ["too few iterations"] * 7
    assert set(reasons[7:]) == {"searching at gbs 16"}
    assert rule.search.search_s > 0


def test_the_fallback_reopens_the_search_at_twice_the_passed_batch() -> None:
    given, _ = wide_problem()
    search = BayesianRungs(given)
    rule = PaperRule(given, fallback=True, search=search)
    first = current = rule.start()
    for i in range(1, 40):
        decision = rule.decide(observe(current, i, estimate(1e6), iteration_s=0.2))
        if decision.strategy:
            current = decision.strategy
            break
    assert current.gbs == 16
    assert search.found(16) is not None
    for j in range(1, 140):  # R < 1 at a falling noise scale: it stays, then steps back
        seen = observe(current, i + j, estimate(200.0 - j), iteration_s=0.001)
        decision = rule.decide(seen)
        if decision.strategy:
            break
    assert decision.strategy == first
    assert decision.reason.startswith("fallback")
    assert search.found(16) is None


def test_the_policy_takes_the_search_as_a_parameter() -> None:
    default, chosen = policy("cona-paper"), policy("cona-paper-search=bo-search_seed3")
    assert default.search == "exhaustive"  # type: ignore[attr-defined]
    assert (chosen.search, chosen.search_seed) == ("bo", 3)  # type: ignore[attr-defined]
    given, _ = wide_problem()
    assert chosen.start(given).gbs == 8
    assert chosen.search_s > 0  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="search = random: input should be 'exhaustive' or 'bo'"):
        policy("cona-paper-search=random")


def test_by_default_the_first_strategy_is_the_exact_one() -> None:
    given, belief = wide_problem()
    assert policy("cona-paper").start(given) == best(given.space.at(8), belief)[0]


def test_both_searches_agree_where_the_rungs_are_small() -> None:
    given = problem()  # one feasible strategy per layout: ten points are all of them
    exact, bayesian = ExhaustiveRungs(given), BayesianRungs(given)
    assert bayesian.start() == exact.start()
    for gbs in given.rungs[1:]:
        while bayesian.found(gbs) is None:
            bayesian.advance(gbs)
        assert bayesian.found(gbs) == exact.found(gbs)
    assert {str(exact.found(g)[0].layout) for g in given.rungs} == {PP4, DP4}  # type: ignore[index]


def test_the_belief_prices_the_search_on_a_real_model() -> None:
    given = problem()
    real = problem(time_model("calculon", given.model, given.cluster))
    search = BayesianRungs(real)
    start = search.start()
    assert real.belief.time_s(start) <= 1.2 * best(real.space.at(8), real.belief)[1]
