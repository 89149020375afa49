"""The switch rule of the paper. Source: method.md 3, `paper`."""

from __future__ import annotations

from cona.controller.rungs import RungSearch, rung_search
from cona.controller.stage import T_MINIMUM, Stage, gns_details
from cona.gns import GradientNoiseScale
from cona.policy import Decision, Details, Observation, Problem
from cona.runlog import finite
from cona.strategy import Strategy
from cona.surrogate import crossing_gns, ratio


class PaperRule:
    """Switch to the next larger batch when R > 1: measured T_cur against modelled T_next.

    A non-positive mu_sq keeps the last valid GNS, and the noise scale starts anew at every
    switch, as in the authors' release.

    Args:
        problem: what the policy knows.
        fallback: after `FALLBACK_STREAK` consecutive decreases of the smoothed GNS go back to
            the strategy passed before, and reopen the search at twice its batch.
        search: where each batch's fastest strategy comes from; None: exhaustive.

    Source: method.md 3, `paper`.
    """

    FALLBACK_ALPHA = 0.1
    FALLBACK_STREAK = 100

    def __init__(
        self, problem: Problem, *, fallback: bool = False, search: RungSearch | None = None
    ) -> None:
        self._fallback = fallback
        self._rungs = problem.rungs
        self._decay = problem.tier.gns.decay_per_sample
        self.search = search or rung_search(problem, "exhaustive")
        self._stage = Stage(start_samples=0, start_s=0.0)
        self._gns = GradientNoiseScale(self._decay)
        self._last_gns: float | None = None
        self._passed: list[Strategy] = []
        self._smoothed: float | None = None
        self._streak = 0

    def start(self) -> Strategy:
        """Return the fastest strategy that the search finds for the smallest batch."""
        return self.search.start()

    def decide(self, seen: Observation) -> Decision:
        """Return whether R > 1 for the next larger batch, or the fallback's step back."""
        if seen.tells_time:
            self._stage.add(seen.iteration_s)
        self._gns.update(seen.terms, seen.strategy.gbs)
        self._last_gns = self._gns.estimate().gns or self._last_gns
        decision = self._weigh(seen)
        if decision.strategy is not None:
            self._begin_stage(seen)
        return decision

    def _weigh(self, seen: Observation) -> Decision:
        gns, current = self._last_gns, seen.strategy
        larger = [gbs for gbs in self._rungs if gbs > current.gbs]
        if larger:
            self.search.advance(larger[0])
        if self._stage.num_iterations < T_MINIMUM:
            return Decision(strategy=None, reason="too few iterations", quiet=True)
        if gns is None:
            return Decision(strategy=None, reason="no GNS estimate yet", quiet=True)
        if self._fallback and self._falls(gns) and self._passed:
            target = self._passed.pop()
            self.search.reopen(2 * target.gbs)
            details: Details = {"gns": gns, "next": str(target)}
            return Decision(strategy=target, reason="fallback: GNS kept falling", details=details)
        if not larger:
            return Decision(strategy=None, reason="at the largest batch", quiet=True)
        found = self.search.found(larger[0])
        if found is None:
            return Decision(strategy=None, reason=f"searching at gbs {larger[0]}", quiet=True)
        candidate, t_next = found
        t_cur = self._stage.time_s
        r = ratio(current.gbs, t_cur, candidate.gbs, t_next, 1 / gns)
        details = {
            **gns_details(self._gns.estimate()),
            "gns_star": finite(crossing_gns(current.gbs, t_cur, candidate.gbs, t_next)),
            "t_cur_s": t_cur,
            "t_next_s": t_next,
            "r": finite(r),
            "next": str(candidate),
        }
        if r > 1:
            self._passed.append(current)
            return Decision(strategy=candidate, reason=f"R = {r:.4f} > 1", details=details)
        return Decision(strategy=None, reason=f"R = {r:.4f} <= 1", details=details)

    def _falls(self, gns: float) -> bool:
        previous = self._smoothed
        if previous is None:
            self._smoothed = gns
            return False
        self._smoothed = previous + self.FALLBACK_ALPHA * (gns - previous)
        self._streak = self._streak + 1 if self._smoothed < previous else 0
        return self._streak >= self.FALLBACK_STREAK

    def _begin_stage(self, seen: Observation) -> None:
        self._stage = Stage(start_samples=seen.samples, start_s=seen.train_s)
        self._gns = GradientNoiseScale(self._decay)
        self._last_gns, self._smoothed, self._streak = None, None, 0
