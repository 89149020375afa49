"""CONA's advice in anybody's training loop: which batch size or layout would progress faster now.

An `Advisor` is shown every iteration (two norms of its gradients, its seconds, the strategy that
ran) and answers with a policy's `Decision` and its reason. It changes nothing by itself: it logs
what it would do, and acting is the caller's. `cona.advisor_norms` collects the norms in a PyTorch
loop, plain, under DistributedDataParallel or under FSDP2; this module needs no torch.
Source: method.md 2 and 3; docs/library.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cona import config
from cona.advisor_problem import belief_of, largest_mbs, tier_of, watching
from cona.advisor_seen import Point, Seen, SquaredNorms
from cona.controller.narrow import with_layout
from cona.cost import SwitchCost
from cona.errors import ConfigError
from cona.gns import GnsEstimate, GradientNoiseScale, GradientTerms
from cona.policy import Decision, InformedPolicy, Observation, Problem
from cona.runlog import dumps
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Layout, Strategy, StrategySpace, Techniques

__all__ = ["Advisor", "SquaredNorms"]

NEUTRAL = Techniques()


class Advisor:
    """A policy that watches a training loop.

    Its advice may be followed or not. If the loop changes its strategy without advice, the policy
    starts anew from there: what it had learned about times is lost, the noise scale is kept.

    Args:
        problem: what the policy may know; `Advisor.of` makes one.
        policy: a policy with its parameters; one that does not look ahead by training.
        log: a JSON-lines file that gets every decision which weighed something; None: no log.

    Raises:
        ConfigError: no such policy, it looks ahead, or no strategy is feasible.
    """

    def __init__(self, problem: Problem, policy: str = "cona", log: Path | None = None) -> None:
        self.problem, self.policy_name, self._log = problem, policy, log
        self._begin()

    @classmethod
    def of(
        cls,
        *,
        model: str | ModelSpec,
        cluster: str | ClusterSpec,
        gbs: tuple[int, int],
        budget_s: float,
        layout: Layout | None = None,
        mbs_max: int | None = None,
        techniques: Techniques = NEUTRAL,
        times_s: Mapping[Strategy, float] | None = None,
        policy: str = "cona",
        settings: Mapping[str, Any] | None = None,
        log: Path | None = None,
    ) -> Advisor:
        """Return an advisor for a model on a cluster.

        Args:
            model: a name, a YAML file, or a specification (`cona.hf.load` reads a config.json).
            cluster: a name like ``dgx-h100@2``, a YAML file, or a specification.
            gbs: smallest and largest global batch size, samples; all doublings are considered.
            budget_s: seconds of training in all: what is left bounds the gain of a switch.
            layout: the only layout there is; None: every one that divides the GPUs.
            mbs_max: largest micro-batch, samples; None: at most 32, and half the smallest gbs, so
                that every iteration has two gradients to compare.
            techniques: what every strategy uses, e.g. ``Techniques(zero_stage=3)`` under FSDP.
            times_s: seconds per iteration that were measured, by strategy; a cost model scaled to
                them gives the others. None: the cost model alone, corrected while training.
            policy: its name with parameters, e.g. ``cona`` or ``cona-paper``.
            settings: of the tier, by dotted key, e.g. ``{"controller.min_samples": 256}``.
            log: a JSON-lines file for the decisions.

        Raises:
            ConfigError: a name or value breaks a rule, or nothing is feasible.
        """
        spec = config.load(ModelSpec, model) if isinstance(model, str) else model
        place = config.load(ClusterSpec, cluster) if isinstance(cluster, str) else cluster
        ladder = {"gbs_min": gbs[0], "gbs_max": gbs[1], "mbs_max": mbs_max or largest_mbs(gbs[0])}
        tier = tier_of(spec, place, policy, ladder, settings or {})
        times_s = {replace(s, techniques=techniques): t for s, t in (times_s or {}).items()}
        problem = Problem(
            tier=tier,
            model=spec,
            trained_model=spec,
            cluster=place,
            space=StrategySpace(
                model=spec, num_gpus=place.num_gpus, ladder=tier.ladder, techniques=techniques
            ),
            belief=belief_of(policy, tier, spec, place, times_s),
            switch_cost=SwitchCost(spec, place),
            time_budget_s=budget_s,
        )
        return cls(problem if layout is None else with_layout(problem, layout), policy, log)

    def _begin(self) -> None:
        self.first = self._start_policy(Point())
        """The strategy to begin with."""
        self._gns = GradientNoiseScale(self.problem.tier.gns.decay_per_sample)
        self._seen: list[Seen] = []
        self._runnable: set[Strategy] = set()
        self._expected: set[Strategy] = set()
        self._warmup_left = self.problem.tier.clock.warmup_iterations
        self._now = Point()

    def _start_policy(self, at: Point) -> Strategy:
        """Start the policy at a point of the training, which it takes for the beginning."""
        self._policy = watching(self.policy_name)
        if isinstance(self._policy, InformedPolicy):
            self._policy.know(self.problem.belief)
        left_s = self.problem.time_budget_s - at.train_s
        self._start = at
        return self._policy.start(replace(self.problem, time_budget_s=left_s))

    # --- observing --------------------------------------------------------------------------------

    def observe(
        self,
        gradients: SquaredNorms | GradientTerms | None,
        *,
        seconds: float,
        strategy: Strategy,
        switch_s: float | None = None,
    ) -> Decision:
        """Return what the policy would do after an iteration, and why.

        Args:
            gradients: the iteration's norms, or its terms; None where its update was skipped.
            seconds: wall time of the iteration; the same on every rank, if every rank asks.
            strategy: what ran it, whether or not it was advised.
            switch_s: seconds of a change of layout right before it; None: there was none.

        Returns:
            A decision; its ``strategy`` is None to stay as it is.

        Raises:
            ConfigError: the seconds are not positive, or the strategy cannot run.
        """
        self._check(seconds, strategy)
        if self._seen and strategy.layout != self._seen[-1].strategy.layout:
            self._warmup_left = self.problem.tier.clock.warmup_iterations
        if isinstance(gradients, SquaredNorms):
            gradients = gradients.terms(strategy.gbs)
        seen = Seen(
            strategy=replace(strategy, techniques=self.problem.space.techniques),
            seconds=seconds,
            terms=gradients,
            switch_s=switch_s,
            is_warmup=self._warmup_left > 0,
        )
        self._warmup_left = max(0, self._warmup_left - 1)
        decision = self._show(seen)
        if self._log and not decision.quiet:
            self._write(self._log, seen, decision)
        return decision

    @property
    def iteration(self) -> int:
        """Iterations seen."""
        return len(self._seen)

    @property
    def gns(self) -> GnsEstimate:
        """The smoothed noise scale with its interval, samples."""
        return self._gns.estimate()

    def _check(self, seconds: float, strategy: Strategy) -> None:
        if not 0 < seconds < math.inf:
            raise ConfigError(f"seconds {seconds}: an iteration takes a positive, finite time")
        if strategy in self._runnable:
            return
        rule = self.problem.space.why_not(strategy) or self.problem.belief.why_not(strategy)
        if rule:
            raise ConfigError(f"strategy {strategy}: {rule}; one that can run: {self.first}")
        self._runnable.add(strategy)

    def _show(self, seen: Seen) -> Decision:
        if self._seen and seen.strategy not in self._expected:
            self._start_policy(self._now)
        self._now = self._now.after(seen)
        self._gns.update(seen.terms, seen.strategy.gbs)
        self._seen.append(seen)
        decision = self._policy.decide(
            Observation(
                iteration=self._now.iteration - self._start.iteration,
                samples=self._now.samples - self._start.samples,
                train_s=self._now.train_s - self._start.train_s,
                strategy=seen.strategy,
                iteration_s=seen.seconds,
                terms=seen.terms,
                gns=self._gns.estimate(),
                last_switch_s=seen.switch_s,
                is_warmup=seen.is_warmup,
            )
        )
        self._expected = {seen.strategy} | ({decision.strategy} if decision.strategy else set())
        return decision

    def _write(self, log: Path, seen: Seen, decision: Decision) -> None:
        """Append a decision; the keys are those of a run's `decision` lines."""
        details = dict(decision.details)
        advised = None if decision.strategy is None else str(decision.strategy)
        record = {
            "iteration": self._now.iteration,
            "samples": self._now.samples,
            "train_s": self._now.train_s,
            "strategy": str(seen.strategy),
            "action": "stay" if advised is None else "switch",
            "next": details.pop("next", advised),
            "reason": decision.reason,
            "details": details,
        }
        with log.open("a", encoding="utf-8") as file:
            file.write(dumps(record) + "\n")

    # --- saving and restoring ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for the caller's checkpoint: what was seen, some 60 bytes a step."""
        return {"policy": self.policy_name, "seen": [seen.row for seen in self._seen]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the policy is shown everything again and decides alike.

        Raises:
            ConfigError: another policy saved it.
        """
        if state["policy"] != self.policy_name:
            raise ConfigError(
                f"the state is that of policy '{state['policy']}', this advisor's is "
                f"'{self.policy_name}'; nearest: Advisor(..., policy='{state['policy']}')"
            )
        self._begin()
        for row in state["seen"]:
            self._show(Seen.of(row, self.problem.space.techniques))
