"""Time, memory and switch costs of strategies (cost-model.md).

Calculon's equations with and without an LM head, and the calibrated model of this project.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cona.cost.base import TimeModel
from cona.cost.calculon import Calculon
from cona.cost.calculon_costs import CalculonCosts
from cona.cost.costs import Costs
from cona.cost.gpu_names import with_known_gpu
from cona.cost.head import CalculonWithHead
from cona.cost.improved import Improved
from cona.cost.memory import MemoryModel, PaperMemory
from cona.cost.parts_costs import PartsCosts
from cona.cost.switch import SwitchCost
from cona.cost.table import TimeTable, table_path
from cona.cost.table_rows import measured
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec, ModelSpec

__all__ = [
    "Costs",
    "MemoryModel",
    "PaperMemory",
    "SwitchCost",
    "TimeModel",
    "planner_costs",
    "time_model",
    "time_models",
]

_MODELS: dict[str, tuple[Callable[[ModelSpec, ClusterSpec], TimeModel], str]] = {
    "calculon": (Calculon, "Calculon's equations (Isaev et al. 2023), as the paper plans with"),
    "calculon+head": (CalculonWithHead, "Calculon's equations plus the LM head, which they lack"),
    "improved": (Improved, "layers, topology, launches and memory, calibrated on measured rows"),
}


def time_models() -> dict[str, str]:
    """Return the time models' names with one line on each."""
    return {name: line for name, (_, line) in _MODELS.items()}


def time_model(name: str, model: ModelSpec, cluster: ClusterSpec) -> TimeModel:
    """Return the time model of a name for one model on one cluster.

    Args:
        name: a key of ``time_models()``, or ``table:<path>`` for measured iterations in a CSV,
            completed by `improved` for the rows' software stack where it lacks a strategy.
        model: the model that is priced.
        cluster: the target cluster.

    Raises:
        ConfigError: no such time model or GPU type (the nearest is offered), or the table is not
            usable.
    """
    cluster = with_known_gpu(cluster)
    if path := table_path(name):
        rows = measured(path, model, cluster)
        return TimeTable(name, rows.times_s, Improved(model, cluster, profile=rows.profile))
    if name not in _MODELS:
        raise ConfigError(f"unknown time model '{name}': {nearest(name, _MODELS)}")
    return _MODELS[name][0](model, cluster)


def planner_costs(name: str, model: ModelSpec, cluster: ClusterSpec) -> Costs:
    """Return what planners ask for, priced by the time model of a name.

    Args:
        name: a key of ``time_models()``; both Calculon models share its layers and our head.
        model: the model that is planned for.
        cluster: the target cluster.

    Raises:
        ConfigError: no such time model or GPU type (the nearest is offered).
    """
    cluster = with_known_gpu(cluster)
    if name in ("calculon", "calculon+head"):
        return CalculonCosts(model, cluster)
    if name not in _MODELS:
        raise ConfigError(f"unknown time model '{name}': {nearest(name, _MODELS)}")
    return PartsCosts(model, cluster, partial(time_model, name, cluster=cluster))
