"""The question that a planner is asked, and its answer.

Source: baselines.md, Offline planners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from cona.cost import planner_costs
from cona.cost.costs import Costs
from cona.cost.measured_costs import MeasuredCosts, is_known
from cona.errors import ConfigError
from cona.planners.plans import NEUTRAL, Plan
from cona.planning import why_indivisible
from cona.specs import ClusterSpec, LadderSpec, ModelSpec
from cona.strategy import Layout, Strategy, StrategySpace, Techniques, divisors


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a planner is asked: the fastest plan of one global batch size."""

    model: ModelSpec
    """The model that is planned for."""
    num_gpus: int
    """GPUs that every plan uses up."""
    gpus_per_node: int
    """GPUs of a node; stages take consecutive GPUs."""
    gbs: int
    """Global batch size, samples."""
    mbs_max: int
    """Largest micro-batch, samples."""
    costs: Costs
    """Times, sizes, links and memory of the pieces."""
    gpu_memory_bytes: float
    """Memory of one GPU."""
    techniques: Techniques = NEUTRAL
    """Given to every strategy."""
    cluster: ClusterSpec | None = None
    """The cluster that costs are for; None: they come from a profile, and nothing else is known."""

    @cached_property
    def space(self) -> StrategySpace:
        """S(gbs): the uniform strategies that divide."""
        return StrategySpace(
            model=self.model,
            num_gpus=self.num_gpus,
            ladder=LadderSpec(gbs_min=1, gbs_max=1, mbs_max=self.mbs_max),  # its rungs play no part
            techniques=self.techniques,
        )

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """S(gbs) in its fixed order: by tp, then pp, then mbs; of a profile, what it measured."""
        return tuple(s for s in self.space.at(self.gbs) if is_known(self.costs, s.tp, s.mbs))

    def allows_tp(self, tp: int) -> bool:
        """Return whether tp divides the model and the GPUs hold it."""
        return tp in self._tps

    @cached_property
    def _tps(self) -> frozenset[int]:
        def divides(tp: int) -> bool:
            alone = replace(self.space, num_gpus=tp, techniques=NEUTRAL)
            return alone.why_not_layout(Layout(dp=1, tp=tp, pp=1)) is None

        some = (tp for tp in divisors(self.model.num_kv_heads) if tp <= self.num_gpus)
        return frozenset(filter(divides, some))

    def allows(self, tp: int, mbs: int) -> bool:
        """Return whether a micro-batch may run at tp; a profile must have measured both sizes."""
        is_in_range = 1 <= mbs <= self.mbs_max and is_known(self.costs, tp, mbs)
        return is_in_range and self.allows_tp(tp)

    def memory_bytes(self, strategy: Strategy) -> float:
        """Return the bytes on the fullest GPU of a uniform strategy, by the costs."""
        return max(self.costs.memory(stage, strategy) for stage in range(strategy.pp))

    def fits(self, plan: Plan) -> bool:
        """Return whether a plan's own memory is within a GPU's; one without memory always is."""
        return plan.memory_bytes is None or plan.memory_bytes <= self.gpu_memory_bytes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a planner answers."""

    best: Plan
    """The plan that it would run."""
    num_evaluated: int
    """Plans whose iteration time it computed."""
    evaluated: tuple[Plan, ...] = ()
    """All of them with their believed times, in the order of evaluation."""


def query_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    gbs: int,
    *,
    preset: str,
    mbs_max: int,
    techniques: Techniques,
) -> Query:
    """Return the query about a model on a whole cluster, priced by a cost model.

    Raises:
        ConfigError: no such cost model or GPU type, or techniques that change the layout.
    """
    if techniques.context_parallel > 1 or techniques.virtual_stages > 1:
        raise ConfigError(
            f"context_parallel {techniques.context_parallel}, virtual_stages "
            f"{techniques.virtual_stages}: offline planners know neither; nearest: 1 and 1"
        )
    return Query(
        model=model,
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        gbs=gbs,
        mbs_max=mbs_max,
        costs=planner_costs(preset, model, cluster),
        gpu_memory_bytes=cluster.gpu_memory_gb * 1e9,
        techniques=techniques,
        cluster=cluster,
    )


def choose(
    planner: str,
    query: Query,
    plans: Iterable[Plan],
    *,
    cost: Callable[[Plan], float] | None = None,
) -> Answer:
    """Return the cheapest plan that fits; on a tie the earlier one wins.

    Args:
        planner: name for the error.
        query: what was asked; its GPU memory says what fits.
        plans: evaluated plans, in order.
        cost: what is minimised; None: the believed seconds per iteration.

    Raises:
        ConfigError: there is no plan, or none fits; the one that comes closest is named.
    """
    evaluated = tuple(plans)
    fitting = [plan for plan in evaluated if query.fits(plan)]
    if not fitting:
        raise ConfigError(_nothing_feasible(planner, query, evaluated))
    best = min(fitting, key=cost or (lambda plan: plan.believed_s))
    return Answer(best=best, num_evaluated=len(evaluated), evaluated=evaluated)


def _nothing_feasible(planner: str, query: Query, evaluated: tuple[Plan, ...]) -> str:
    where = f"{planner}: nothing feasible at gbs {query.gbs} on {query.num_gpus} GPUs"
    if not evaluated and isinstance(query.costs, MeasuredCosts):
        tps, mbss = (", ".join(map(str, sizes)) for sizes in (query.costs.tps, query.costs.mbss))
        return f"{where}: the profile measured tp {tps} at mbs {mbss}, and no plan needs only these"
    if not evaluated and not query.space.at(query.gbs):
        return f"{where}: {why_indivisible((query.space,), query.gbs)}"
    if not evaluated:
        return f"{where}: no degrees divide the GPUs, the {query.model.num_layers} layers and gbs"
    closest = min(evaluated, key=lambda plan: plan.memory_bytes or math.inf)
    needed, limit = (closest.memory_bytes or math.inf) / 1e9, query.gpu_memory_bytes / 1e9
    return f"{where}: closest was {closest}, which needs {needed:.4g} of {limit:.4g} GB per GPU"
