"""Small problems for tests of policies: a tier, a model, and time models from a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cona.cost import SwitchCost, TimeModel
from cona.gns import GnsEstimate, GradientTerms
from cona.policy import Observation, Problem
from cona.specs import (
    ClusterSpec,
    ControllerSpec,
    EvaluationSpec,
    LadderSpec,
    LearningRateSpec,
    LinkSpec,
    ModelSpec,
    OracleSpec,
    TierSpec,
    TrainingSpec,
)
from cona.strategy import Strategy, StrategySpace


class TableTimes:
    """A time model that looks T up by (layout, gbs); what the table lacks is infeasible.

    Args:
        table: seconds by ("dp2-tp1-pp2", gbs); the micro-batch does not matter.
    """

    name = "table"

    def __init__(self, table: dict[tuple[str, int], float]) -> None:
        self.table = table

    def time_s(self, strategy: Strategy) -> float:
        return self.table[str(strategy.layout), strategy.gbs]

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.array([self.time_s(s) for s in strategies])

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"compute": self.time_s(strategy)}

    def why_not(self, strategy: Strategy) -> str | None:
        known = (str(strategy.layout), strategy.gbs) in self.table and strategy.mbs == 1
        return None if known else "not in the table"


def tiny_model(**changes: object) -> ModelSpec:
    """Return a model of one layer; any field can be replaced."""
    fields: dict[str, object] = {
        "name": "tiny",
        "description": "for tests",
        "family": "gpt",
        "num_layers": 4,
        "hidden_size": 16,
        "num_heads": 4,
        "num_kv_heads": 4,
        "ffn_size": 32,
        "vocab_size": 512,
        "seq_length": 16,
        "tp_max": 4,
        "training": TrainingSpec(base_lr=1e-2, min_lr=1e-3, decay_tokens=100_000),
        "source": "test",
        **changes,
    }
    return ModelSpec.model_validate(fields)


def tiny_cluster() -> ClusterSpec:
    """Return four GPUs in two nodes."""
    return ClusterSpec(
        name="tiny-cluster",
        description="for tests",
        gpu="a100-80g",
        num_nodes=2,
        gpus_per_node=2,
        gpu_memory_gb=80,
        intra_node=LinkSpec(bandwidth_gb_s=300, efficiency=0.65, latency_us=10),
        inter_node=LinkSpec(bandwidth_gb_s=25, efficiency=0.9, latency_us=20),
        source="test",
    )


def tiny_tier(**changes: object) -> TierSpec:
    """Return a tier with rungs 8, 16 and 32; any field can be replaced."""
    fields: dict[str, object] = {
        "name": "tiny",
        "description": "for tests",
        "models": ("tiny",),
        "policies": ("cona",),
        "ladder": LadderSpec(gbs_min=8, gbs_max=32, mbs_max=8),
        "evaluation": EvaluationSpec(interval_samples=32, num_samples=4, probe_samples=4),
        "controller": ControllerSpec(min_iterations=2, min_samples=16, z=1.64),
        "learning_rate": LearningRateSpec(decay_samples=1000),
        "oracle": OracleSpec(decisions=4),
        "snapshot_interval_samples": 64,
        **changes,
    }
    return TierSpec.model_validate(fields)


DP4, PP4 = "dp4-tp1-pp1", "dp1-tp1-pp4"

TABLE = {
    (DP4, 8): 0.30,
    (DP4, 16): 0.35,
    (DP4, 32): 0.45,
    (PP4, 8): 0.20,
    (PP4, 16): 0.30,
    (PP4, 32): 0.50,
}
"""Pipeline wins at gbs 8 and 16, data parallelism at 32."""


def problem(
    belief: TimeModel | None = None, *, budget_s: float = 1000.0, **tier_changes: object
) -> Problem:
    """Return a problem on the tiny model and cluster, by default with `TABLE` as belief."""
    tier, model, cluster = tiny_tier(**tier_changes), tiny_model(), tiny_cluster()
    return Problem(
        tier=tier,
        model=model,
        trained_model=model,
        cluster=cluster,
        space=StrategySpace(model=model, num_gpus=4, ladder=tier.ladder),
        belief=belief or TableTimes(TABLE),
        switch_cost=SwitchCost(model, cluster),
        time_budget_s=budget_s,
    )


def estimate(gns: float, *, relative_se: float = 0.0, mu_sq: float = 1.0) -> GnsEstimate:
    """Return an estimate of a noise scale whose numerator has a relative standard error."""
    x = gns * abs(mu_sq)
    return GnsEstimate(
        num_terms=100,
        tr_sigma=x,
        mu_sq=mu_sq,
        var_xx=(relative_se * x) ** 2,
        var_yy=0.0,
        var_xy=0.0,
    )


def observe(
    strategy: Strategy,
    iteration: int,
    gns: GnsEstimate,
    *,
    iteration_s: float,
    train_s: float | None = None,
    last_switch_s: float | None = None,
) -> Observation:
    """Return an observation after an iteration, with samples counted at the strategy's gbs."""
    return Observation(
        iteration=iteration,
        samples=iteration * strategy.gbs,
        train_s=iteration * iteration_s if train_s is None else train_s,
        strategy=strategy,
        iteration_s=iteration_s,
        terms=GradientTerms(tr_sigma=gns.tr_sigma, mu_sq=gns.mu_sq),
        gns=gns,
        last_switch_s=last_switch_s,
    )
