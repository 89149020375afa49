"""The loop: a policy walks a trajectory while a clock accounts for its strategies.

A run is resumed by repeating it: recorded iterations cost nothing, the policy sees the same
observations and hence decides the same, and the log verifies every line that stands in it.
Source: method.md 7, architecture.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cona.asked import AskedPolicy
from cona.clock import Clock
from cona.divergence import DivergenceWatch
from cona.errors import RunError
from cona.interrupt import Interrupted, stop_signals
from cona.lock import Lock, patience_s
from cona.measured_record import keep_last_checkpoint
from cona.policy import (
    Decision,
    InformedPolicy,
    Observation,
    SearchingPolicy,
)
from cona.progress import EVENTS, RunProgress
from cona.provenance import run_facts
from cona.result import result_facts
from cona.run_folder import damage, finished, set_aside_other_configuration
from cona.runlog import JsonLines, write_json
from cona.segments import Step
from cona.setup import RunRequest, Setup
from cona.storage import writing
from cona.strategy import Strategy
from cona.walk import Timed, Walk

ROUNDING = 1e-9
"""A sum of many T may exceed the same multiple of T by this much, relatively."""

Say = Callable[[str], None]
"""Tells people one line about a run."""

__all__ = ["Interrupted", "RunRequest", "Say", "run"]


def run(request: RunRequest, *, progress: bool = False, say: Say = lambda line: None) -> Path:
    """Execute or finish one run and return its result file; a finished run is not repeated.

    Args:
        request: which run.
        progress: draw a progress bar on standard error.
        say: gets why a damaged run is repeated; by default nobody is told.

    Raises:
        ConfigError, DataError: the request breaks a rule.
        RunError: another process works in the run directory, or its files do not match.
        PolicyError: the policy's own code failed.
        StorageError: the disk is full or cannot be written; the state so far stands.
        Interrupted: a signal arrived; the state is saved.
    """
    with writing(request.folder):
        request.folder.mkdir(parents=True, exist_ok=True)
    with Lock(request.folder, wait_s=patience_s()) as lock:
        return _run_locked(request, lock, progress=progress, say=say)


def _run_locked(request: RunRequest, lock: Lock, *, progress: bool, say: Say) -> Path:
    setup = Setup(request)
    result_path = request.folder / "result.json"
    if not finished(result_path, setup.run_key):
        if found := damage(result_path):
            say(f"{found}; the run is repeated")
        set_aside_other_configuration(request.folder, setup.run_key)
        Run(setup, progress=progress, say=say).execute(lock)
    keep_last_checkpoint(request.folder)  # again, where a kill came between
    return result_path


class Run:
    """One policy on one trajectory under one clock.

    Args:
        setup: the resolved request.
        progress: draw a progress bar on standard error.
        say: gets why recorded work is done again.
    """

    def __init__(self, setup: Setup, *, progress: bool, say: Say) -> None:
        self.setup, self.tier, self.policy, self.say = setup, setup.tier, setup.policy, say
        self.folder = setup.request.folder
        self.asked = AskedPolicy(self.policy, setup.request.policy, self.folder / EVENTS)
        self.trajectory: Walk = setup.trajectory()
        self.clock: Clock = setup.clock()
        request = setup.request
        title = f"{setup.model.name} {request.policy} seed {request.seed}"
        self.progress = RunProgress(self.folder, title, setup.time_budget_s, shown=progress)
        self.iteration = self.samples = 0
        self.stages: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.diverged = self.out_of_time = False
        self.watch = DivergenceWatch(self.tier.divergence)
        self.last_switch_s: float | None = None

    def execute(self, lock: Lock) -> Path:
        """Run until the budget is used up, and write the result.

        Args:
            lock: of the run directory; the run stops if another process takes it over.
        """
        write_json(self.folder / "run.json", run_facts(self.setup))
        if self.clock.kind == "measured":  # derived: what happened is in measured.jsonl
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
        self.log = JsonLines(self.folder / "metrics.jsonl")
        with stop_signals(lock.check) as stop, self.progress:
            self.trajectory.on_step(stop.check)
            try:
                self._begin()
                while not (self.diverged or self.out_of_time):
                    self._iterate()
                    stop.check()
                self._evaluate()
            except Interrupted:
                self.trajectory.keep()
                self.log.close()
                raise
        return self._finish()

    def _begin(self) -> None:
        if isinstance(self.policy, InformedPolicy):
            self.policy.know(self.setup.time_source)
        self.strategy = self.asked.start(self.setup.problem())
        self._check(self.strategy)
        self._add_stage()
        iteration_s, budget_s = self.clock.iteration_s(self.strategy), self.setup.time_budget_s
        if not self._fits(self.strategy):
            raise RunError(
                f"policy '{self.setup.request.policy}': one iteration of {self.strategy} takes "
                f"{iteration_s:.4g} s, more than the whole budget of {budget_s:.4g} s; "
                f"set budget.iterations to {math.ceil(iteration_s / budget_s * 2)} times as many"
            )
        if repeated := self.trajectory.begin(self.strategy):
            self.progress.event("work repeated", **repeated)
            if reason := repeated.get("reason"):
                self.say(f"{reason}; the run starts again from the beginning")
        self._evaluate()

    def _check(self, strategy: Strategy) -> None:
        broken = self.setup.space.why_not(strategy) or self.setup.time_source.why_not(strategy)
        if broken:
            raise RunError(f"policy '{self.setup.request.policy}' chose {strategy}: {broken}")

    def _fits(self, strategy: Strategy, switch_s: float = 0.0) -> bool:
        """Return whether one more iteration, after a switch, ends within the budget."""
        ahead_s = self.clock.train_s + switch_s + self.clock.iteration_s(strategy)
        return ahead_s <= self.setup.time_budget_s * (1 + ROUNDING)

    def _iterate(self) -> None:
        timed = self.trajectory.iterate(self.strategy)
        step = timed.record
        iteration_s = self.clock.add_iteration(
            self.strategy, timed.seconds, is_warmup=timed.is_warmup
        )
        crossed = self._crosses_grid(step)
        self.iteration, self.samples = step.iteration, step.samples
        self._log_step(timed, iteration_s)
        self.diverged = self.watch.see(step)
        if crossed and not self.diverged:
            self._evaluate()
        if self.diverged:
            return
        self._decide(timed, iteration_s)
        self.out_of_time = self.out_of_time or not self._fits(self.strategy)
        self.progress.update(
            samples=self.samples,
            train_s=self.clock.train_s,
            ppl=self.evaluations[-1]["ppl"],
            gns=self.trajectory.gns.estimate(),
            strategy=self.strategy,
        )

    def _crosses_grid(self, step: Step) -> bool:
        interval = self.tier.evaluation.interval_samples
        return self.samples // interval != step.samples // interval

    def _log_step(self, timed: Timed[Step], iteration_s: float) -> None:
        step, gns = timed.record, self.trajectory.gns.estimate()
        low, high = gns.interval()
        self._record(
            "step",
            strategy=str(self.strategy),
            gbs=self.strategy.gbs,
            loss=step.loss,
            lr=step.lr,
            grad_norm=step.grad_norm,
            skipped=step.skipped,
            tr_sigma=step.tr_sigma,
            mu_sq=step.mu_sq,
            gns=gns.gns,
            gns_low=low,
            gns_high=high,
            iteration_s=iteration_s,
            train_s=self.clock.train_s,
            **({} if timed.seconds is None else {"is_warmup": timed.is_warmup}),
        )

    def _evaluate(self) -> None:
        """Evaluate here, once: at the start, on the grid and at the end."""
        if self.evaluations and self.evaluations[-1]["iteration"] == self.iteration:
            return
        timed = self.trajectory.validate()
        evaluation = timed.record
        self.clock.add_evaluation(self.strategy, self.tier.evaluation.num_samples, timed.seconds)
        ppl, num_bytes = evaluation.perplexity, self.trajectory.num_evaluation_bytes
        if ppl is None:
            self.diverged = True
        bits = None
        if num_bytes and evaluation.nats is not None:
            bits = evaluation.nats / math.log(2) / num_bytes
        record = self._record(
            "eval",
            strategy=str(self.strategy),
            gbs=self.strategy.gbs,
            train_s=self.clock.train_s,
            compute_s=self.clock.compute_s,
            switch_s=dict(self.clock.switch_s),
            wall_s=self.clock.wall_s,
            nats=evaluation.nats,
            num_tokens=evaluation.num_tokens,
            ppl=ppl,
            bits_per_byte=bits,
        )
        self.evaluations.append(record)

    def _decide(self, timed: Timed[Step], iteration_s: float) -> None:
        decision = self.asked.decide(
            Observation(
                iteration=self.iteration,
                samples=self.samples,
                train_s=self.clock.train_s,
                strategy=self.strategy,
                iteration_s=iteration_s,
                terms=timed.record.terms,
                gns=self.trajectory.gns.estimate(),
                last_switch_s=self.last_switch_s,
                is_warmup=timed.is_warmup,
            )
        )
        self.last_switch_s = None
        if not decision.quiet:
            self._log_decision(decision)
        if decision.strategy is not None:
            self._switch(decision.strategy)

    def _log_decision(self, decision: Decision) -> None:
        details = dict(decision.details)
        self._record(
            "decision",
            train_s=self.clock.train_s,
            strategy=str(self.strategy),
            action="stay" if decision.strategy is None else "switch",
            next=details.pop("next", decision.strategy and str(decision.strategy)),
            reason=decision.reason,
            details=details,
        )

    def _switch(self, new: Strategy) -> None:
        self._check(new)
        old = self.strategy
        costs = self.clock.switch_costs_s(old, new)
        if not self._fits(new, costs[self.clock.preset]):
            self.out_of_time = True  # what is left would go into the switch alone
            return
        costs = self.clock.add_switch(costs, self.trajectory.switch(old, new))
        self.strategy = new
        if new.layout != old.layout:
            self.last_switch_s = costs[self.clock.preset]
        fields = {"from": str(old), "to": str(new), "cost_s": costs}
        self._record("switch", train_s=self.clock.train_s, **fields)
        self._add_stage()

    def _add_stage(self) -> None:
        self.stages.append(
            {
                "strategy": str(self.strategy),
                "iteration": self.iteration,
                "samples": self.samples,
                "train_s": self.clock.train_s,
                "time_origin": self.clock.origin(self.strategy),
            }
        )

    def _record(self, kind: str, **fields: Any) -> dict[str, Any]:
        record = {"kind": kind, "iteration": self.iteration, "samples": self.samples, **fields}
        self.log.append(record)
        return record

    def _finish(self) -> Path:
        self.log.finish()
        path = self.folder / "result.json"
        write_json(path, result_facts(self))
        walk = self.trajectory
        buckets = {}
        if isinstance(self.policy, SearchingPolicy):
            buckets["search_s"] = self.policy.search_s
        self.progress.event("finished", trained=walk.num_trained, read=walk.num_read, **buckets)
        return path
