"""The improved switch rule: bias-corrected, uncertainty-aware, cost-aware, in both directions.

Source: method.md 3, `improved`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from cona.controller.bias import BiasCorrection
from cona.controller.stage import Stage, best_per_rung, gns_details
from cona.gns import LARGEST_TERM
from cona.policy import Decision, Details, Observation, Problem
from cona.runlog import finite
from cona.strategy import Layout, Strategy
from cona.surrogate import crossing_gns


@dataclass(frozen=True, kw_only=True)
class RuleSwitches:
    """The four differences to the paper; each can be turned off for an ablation."""

    bias_correction: bool = True
    """a. Correct modelled times by measured ones."""
    uncertainty: bool = True
    """b. Require R > 1 to be significant."""
    cost: bool = True
    """c. Weigh the gain over a horizon against the switch cost."""
    both_directions: bool = True
    """d. Consider every strategy of the ladder, not only the next larger batch's fastest."""


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Arrays over candidate strategies: seconds, and cost of switching there in seconds."""

    strategies: list[Strategy]
    gbs: np.ndarray
    modelled_s: np.ndarray


class ImprovedRule:
    """Bias-corrected, uncertainty-aware, cost-aware, in both directions.

    Args:
        problem: what the policy knows.
        z: standard errors by which the gain must be significant; None: the tier's.
        switches: which of the four differences are on.

    Source: method.md 3, `improved`.
    """

    def __init__(
        self, problem: Problem, *, z: float | None = None, switches: RuleSwitches | None = None
    ) -> None:
        self._problem = problem
        self._limits = problem.tier.controller
        self._z = self._limits.z if z is None else z
        self._on = switches or RuleSwitches()
        self._best = best_per_rung(problem)
        self._candidates = self._list_candidates()
        self._bias = BiasCorrection()
        self._stage = Stage(start_samples=0, start_s=0.0)
        self._switch_costs_s: list[float] = []

    def _list_candidates(self) -> _Candidates:
        problem = self._problem
        feasible = [
            strategy
            for gbs in problem.rungs
            for strategy in problem.space.at(gbs)
            if problem.belief.why_not(strategy) is None
        ]
        return _Candidates(
            strategies=feasible,
            gbs=np.array([s.gbs for s in feasible], dtype=np.float64),
            modelled_s=problem.belief.times_s(feasible),
        )

    def start(self) -> Strategy:
        """Return the fastest strategy of the smallest batch."""
        return self._best[min(self._best)][0]

    def decide(self, seen: Observation) -> Decision:
        """Return the eligible strategy with the largest net gain, if any."""
        if seen.last_switch_s is not None:
            self._switch_costs_s.append(seen.last_switch_s)
        if not seen.tells_time:
            return Decision(strategy=None, reason="warming up", quiet=True)
        self._stage.add(seen.iteration_s)
        if self._stage.num_iterations == 1:
            self._bias.begin(seen.strategy)
        modelled = self._problem.belief.time_s(seen.strategy)
        self._bias.update(seen.strategy, self._stage.time_s, modelled)
        decision = self._weigh(seen)
        if decision.strategy is not None:
            self._stage = Stage(start_samples=seen.samples, start_s=seen.train_s)
        return decision

    def _weigh(self, seen: Observation) -> Decision:
        if self._stage.num_iterations < self._limits.min_iterations:
            return Decision(strategy=None, reason="too few iterations", quiet=True)
        if seen.samples - self._stage.start_samples < self._limits.min_samples:
            return Decision(strategy=None, reason="too few samples", quiet=True)
        if seen.gns.num_terms < 2 or not seen.gns.is_known:
            return Decision(strategy=None, reason="no GNS estimate yet")
        pool = self._candidates
        t_next = pool.modelled_s * self._correction()
        r = self._ratios(seen, t_next)
        net, cost = self._net_gain_s(seen, r)
        eligible = self._eligible(seen, t_next, r) & self._allowed(seen.strategy)
        return self._choose(seen, t_next, r, net, cost, eligible)

    def _correction(self) -> np.ndarray:
        strategies = self._candidates.strategies
        if not self._on.bias_correction:
            return np.ones(len(strategies))
        factors = {layout: self._bias.factor(layout) for layout in {s.layout for s in strategies}}
        return np.array([factors[s.layout] for s in strategies])

    def _ratios(self, seen: Observation, t_next: np.ndarray) -> np.ndarray:
        gbs, t_cur = seen.strategy.gbs, self._stage.time_s
        u = max(seen.gns.mu_sq / seen.gns.tr_sigma, 0.0) if seen.gns.tr_sigma > 0 else 0.0
        u = min(u, LARGEST_TERM)
        pool = self._candidates.gbs
        return (t_cur / t_next) * (pool / gbs) * (1 + gbs * u) / (1 + pool * u)

    def _eligible(self, seen: Observation, t_next: np.ndarray, r: np.ndarray) -> np.ndarray:
        """R > 1 if and only if a*tr_sigma - c*mu_sq > 0; significant if by z standard errors."""
        if not self._on.uncertainty:
            return r > 1
        gns, gbs, t_cur = seen.gns, seen.strategy.gbs, self._stage.time_s
        a = self._candidates.gbs * t_cur - gbs * t_next
        c = gbs * self._candidates.gbs * (t_next - t_cur)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond a float: not significant
            variance = a**2 * gns.var_xx - 2 * a * c * gns.var_xy + c**2 * gns.var_yy
            margin = a * gns.tr_sigma - c * gns.mu_sq
            return (margin > self._z * np.sqrt(np.maximum(variance, 0.0))) & (margin > 0)

    def _allowed(self, current: Strategy) -> np.ndarray:
        pool = self._candidates.strategies
        if self._on.both_directions:
            return np.array([s != current for s in pool])
        larger = [gbs for gbs in self._best if gbs > current.gbs]
        only = self._best[min(larger)][0] if larger else None
        return np.array([s == only for s in pool])

    def _net_gain_s(self, seen: Observation, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = self._problem.time_budget_s - seen.train_s
        horizon = min(left, seen.train_s - self._stage.start_s)
        with np.errstate(over="ignore"):  # beyond a float: endless loss
            gain = horizon * (1 - 1 / r)
        if not self._on.cost:
            return gain, np.zeros_like(gain)
        costs = {
            layout: self._cost_s(seen.strategy, layout)
            for layout in {s.layout for s in self._candidates.strategies}
        }
        cost = np.array([costs[s.layout] for s in self._candidates.strategies])
        return gain - cost, cost

    def _cost_s(self, current: Strategy, layout: Layout) -> float:
        if layout == current.layout:
            return 0.0
        if self._switch_costs_s:
            return statistics.fmean(self._switch_costs_s)
        target = next(s for s in self._candidates.strategies if s.layout == layout)
        return self._problem.switch_cost.seconds(current, target, self._limits.switch_cost_prior)

    def _choose(
        self,
        seen: Observation,
        t_next: np.ndarray,
        r: np.ndarray,
        net: np.ndarray,
        cost: np.ndarray,
        eligible: np.ndarray,
    ) -> Decision:
        pool = self._candidates.strategies
        useful = eligible & (net > 0)
        others = self._allowed(seen.strategy)
        if not others.any():
            return Decision(strategy=None, reason="no other strategy", quiet=True)
        # Whom to name: the chosen one, or the most promising of those that were rejected.
        score = np.where(useful, net, -np.inf) if useful.any() else np.where(others, r, -np.inf)
        index = int(np.argmax(score))
        details: Details = {
            **gns_details(seen.gns),
            "gns_star": self._next_crossing(seen.strategy),
            "t_cur_s": self._stage.time_s,
            "t_next_s": finite(float(t_next[index])),
            "r": finite(float(r[index])),
            "net_s": finite(float(net[index])),
            "cost_s": finite(float(cost[index])),
            "next": str(pool[index]),
        }
        if useful.any():
            reason = f"net gain {net[index]:.3g} s"
            return Decision(strategy=pool[index], reason=reason, details=details)
        if r[index] <= 1:
            reason = f"R = {r[index]:.4f} <= 1"
        elif not eligible[index]:
            reason = f"R = {r[index]:.4f} > 1 is not significant"
        else:
            reason = f"the switch costs {cost[index]:.3g} s, more than it gains"
        return Decision(strategy=None, reason=reason, details=details)

    def _next_crossing(self, current: Strategy) -> float | None:
        larger = [gbs for gbs in self._best if gbs > current.gbs]
        if not larger:
            return None
        candidate, t_next = self._best[min(larger)]
        corrected = t_next * (
            self._bias.factor(candidate.layout) if self._on.bias_correction else 1.0
        )
        return finite(crossing_gns(current.gbs, self._stage.time_s, candidate.gbs, corrected))
