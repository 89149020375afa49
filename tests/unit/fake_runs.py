"""Run directories in the format of docs/results-format.md, made from formulas instead of training.

Perplexity falls with progress, ppl = floor + height * exp(-progress / scale); an iteration at batch
B progresses B / (B + GNS), and the noise scale grows with progress. T(gbs) is linear in gbs.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cona.result import sealed

Record = dict[str, Any]
GRID = 128
RESTART_S = 38.0
EVAL_S = 0.25
LIVE_S = 1.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A policy and the strategies that it walks through."""

    policy: str
    kind: str
    stages: tuple[tuple[int, str], ...]
    """(samples after which it begins, strategy)."""


def strategy(gbs: int, layout: str = "dp4-tp1-pp1") -> str:
    """Return a strategy with micro-batches of 2."""
    return f"{layout}-mbs2-gbs{gbs}"


def gbs_of(text: str) -> int:
    return int(text.rpartition("gbs")[2])


FIXED = tuple(
    Plan(policy=f"fixed-best-gbs{g}", kind="offline", stages=((0, strategy(g)),))
    for g in (8, 16, 32, 64)
)
CONA = Plan(
    policy="cona",
    kind="online",
    stages=(
        (0, strategy(8)),
        (512, strategy(16)),
        (1280, strategy(32, "dp2-tp1-pp2")),
        (2560, strategy(64, "dp2-tp1-pp2")),
    ),
)
PAPER = Plan(
    policy="cona-paper",
    kind="online",
    stages=((0, strategy(8)), (1024, strategy(16)), (2048, strategy(32))),
)
RAMPUP = Plan(
    policy="rampup",
    kind="schedule",
    stages=((0, strategy(8)), (768, strategy(16)), (1536, strategy(32)), (2304, strategy(64))),
)
ORACLE = Plan(
    policy="greedy-oracle",
    kind="bound",
    stages=tuple((256 * i, strategy((8, 8, 16, 8, 16, 32, 16, 32, 64, 64)[i])) for i in range(10)),
)
ALL = (ORACLE, CONA, PAPER, RAMPUP, *FIXED)


def clock(**changes: object) -> Record:
    """Return the clock of a result."""
    return {
        "kind": "modelled",
        "time_source": "calculon+head",
        "switch_cost": "live",
        "cluster": "a100x4-2node",
        "priced_as": "gpt3-1.3b",
        "unit": "modelled seconds",
        **changes,
    }


def write_run(
    results: Path,
    lines: list[Record],
    *,
    tier: str = "quick",
    model: str = "gpt3-1.3b-proxy",
    policy: str = "cona",
    kind: str = "online",
    seed: int = 0,
    **changes: object,
) -> Path:
    """Write one run directory from the lines of metrics.jsonl; ``changes`` replace result keys."""
    path = results / tier / model / policy / f"seed{seed}"
    path.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    (path / "metrics.jsonl").write_bytes(content)
    (path / "events.jsonl").write_text("")
    evals = [line for line in lines if line["kind"] == "eval"]
    perplexities = [e["ppl"] for e in evals if e["ppl"] is not None]
    switches = [line for line in lines if line["kind"] == "switch"]
    last = evals[-1]
    result = {
        "schema": 1,
        "status": "finished",
        "tier": tier,
        "model": model,
        "policy": policy,
        "seed": seed,
        "perplexity_name": "mlm_ppl" if "bert" in model else "ppl",
        "kind": kind,
        "source": "made up",
        "clock": clock(),
        "belief": "calculon+head",
        "time_budget_s": 300.0,
        "train_s": last["train_s"],
        "compute_s": last["compute_s"],
        "switch_s": last["switch_s"],
        "iterations": last["iteration"],
        "samples": last["samples"],
        "ppl": last["ppl"],
        "best_ppl": min(perplexities, default=None),
        "num_switches": len(switches),
        "num_gbs_switches": sum(gbs_of(s["from"]) != gbs_of(s["to"]) for s in switches),
        "stages": [
            {"strategy": evals[0]["strategy"], "iteration": 0, "samples": 0, "train_s": 0.0},
            *(
                {"strategy": s["to"], **{k: s[k] for k in ("iteration", "samples", "train_s")}}
                for s in switches
            ),
        ],
        "trajectories": ["0123456789abcdef"],
        "data_hash": "da7a",
        "comparison_key": "c0",
        "warmup_samples": 0.0,
        "config_hash": "c0f1",
        "run_key": hashlib.sha256(f"{tier}/{model}/{policy}/{seed}".encode()).hexdigest()[:16],
        "metrics_sha256": hashlib.sha256(content).hexdigest(),
        **changes,
    }
    configured = {"data": {"corpus": "stdlib"}, "ladder": {"gbs_min": 8, "gbs_max": 64}}
    (path / "run.json").write_text(json.dumps({"commit": "abc123", "tier": configured}))
    (path / "result.json").write_text(json.dumps(sealed(result), allow_nan=False))
    return path


def eval_line(
    samples: int,
    train_s: float,
    ppl: float | None,
    *,
    switch_s: float = 0.0,
    chosen: str = strategy(8),
) -> Record:
    """Return an evaluation; ``switch_s`` is the live cost inside train_s."""
    tokens = 1000
    return {
        "kind": "eval",
        "iteration": samples // gbs_of(chosen),
        "samples": samples,
        "train_s": train_s,
        "compute_s": train_s - switch_s,
        "wall_s": train_s + EVAL_S,
        "switch_s": {"live": switch_s, "restart": switch_s / LIVE_S * RESTART_S, "zero": 0.0},
        "nats": None if ppl is None else math.log(ppl) * tokens,
        "num_tokens": tokens,
        "ppl": ppl,
        "bits_per_byte": None if ppl is None else math.log2(ppl) / 3.2,
        "gbs": gbs_of(chosen),
        "strategy": chosen,
    }


@dataclass(kw_only=True)
class Simulation:
    """Walks a plan and collects the lines of metrics.jsonl."""

    plan: Plan
    budget_s: float = 300.0
    floor: float = 20.0
    height: float = 480.0
    scale: float = 60.0
    noise: float = 0.0
    lines: list[Record] = field(default_factory=list)
    iteration: int = 0
    samples: int = 0
    compute_s: float = 0.0
    num_paid: int = 0
    progress: float = 0.0

    @property
    def switch_s(self) -> Record:
        return {"live": LIVE_S * self.num_paid, "restart": RESTART_S * self.num_paid, "zero": 0.0}

    @property
    def train_s(self) -> float:
        return self.compute_s + self.switch_s["live"]

    @property
    def gns(self) -> float:
        return 4.0 + 0.9 * self.progress

    def run(self) -> list[Record]:
        """Return every line of the run."""
        stages = list(self.plan.stages)
        current = stages.pop(0)[1]
        self._evaluate(current)
        while self.train_s < self.budget_s:
            self._step(current)
            if stages and self.samples >= stages[0][0]:
                following = stages.pop(0)[1]
                self._decide(current, following, "switch")
                self._switch(current, following)
                current = following
            elif self.plan.kind == "online" and self.iteration % 10 == 0:
                self._decide(current, strategy(gbs_of(current) * 2), "stay")
        self._evaluate(current)
        return self.lines

    def _line(self, kind: str, **values: object) -> None:
        self.lines.append(
            {"kind": kind, "iteration": self.iteration, "samples": self.samples, **values}
        )

    def _step(self, current: str) -> None:
        gbs = gbs_of(current)
        seconds = 0.6 + 0.05 * gbs
        gns = self.gns * (1 + 0.1 * math.sin(self.iteration))
        self.iteration += 1
        before = self.samples // GRID
        self.samples += gbs
        self.compute_s += seconds
        self.progress += gbs / (gbs + self.gns)
        early = self.iteration < 8
        self._line(
            "step",
            strategy=current,
            gbs=gbs,
            loss=math.log(self._ppl()),
            lr=1e-3,
            grad_norm=1.0,
            skipped=False,
            tr_sigma=gns,
            mu_sq=1.0,
            gns=None if self.iteration < 3 else gns,
            gns_low=None if self.iteration < 3 else gns * 0.7,
            gns_high=None if early else gns * 1.5,
            iteration_s=seconds,
            train_s=self.train_s,
        )
        if self.samples // GRID > before:
            self._evaluate(current)

    def _ppl(self) -> float:
        wave = 1 + self.noise * math.sin(3.0 * self.progress)
        return (self.floor + self.height * math.exp(-self.progress / self.scale)) * wave

    def _evaluate(self, current: str) -> None:
        line = eval_line(self.samples, self.train_s, self._ppl(), chosen=current)
        line |= {"iteration": self.iteration, "compute_s": self.compute_s}
        self.lines.append(line | {"switch_s": self.switch_s})

    def _decide(self, current: str, following: str, action: str) -> None:
        small, large = gbs_of(current), gbs_of(following)
        t_small, t_large = 0.6 + 0.05 * small, 0.6 + 0.05 * large
        star = None
        if large * t_small > small * t_large:
            star = small * large * (t_large - t_small) / (large * t_small - small * t_large)
        self._line(
            "decision",
            train_s=self.train_s,
            strategy=current,
            action=action,
            next=following,
            reason="made up",
            details={"gns": self.gns, "gns_star": star},
        )

    def _switch(self, current: str, following: str) -> None:
        paid = current.split("-mbs")[0] != following.split("-mbs")[0]
        self.num_paid += paid
        cost = {"live": LIVE_S * paid, "restart": RESTART_S * paid, "zero": 0.0}
        self._line(
            "switch", train_s=self.train_s, **{"from": current, "to": following}, cost_s=cost
        )


def write_tier(
    results: Path,
    *,
    models: tuple[str, ...] = ("bert-large-proxy", "gpt3-1.3b-proxy", "llama-3.2-1b-proxy"),
    plans: tuple[Plan, ...] = ALL,
    seeds: tuple[int, ...] = (0,),
    tier: str = "quick",
) -> None:
    """Write a tier of simulated runs; models and seeds differ a little."""
    for place, model in enumerate(models):
        for seed in seeds:
            for plan in plans:
                lines = Simulation(
                    plan=plan, scale=60.0 - 12.0 * place + 2.0 * seed, noise=0.01
                ).run()
                write_run(
                    results,
                    lines,
                    tier=tier,
                    model=model,
                    policy=plan.policy,
                    kind=plan.kind,
                    seed=seed,
                    clock=clock(priced_as=model.removesuffix("-proxy")),
                )
