"""Time, memory and switch costs of strategies (cost-model.md).

Step 1 of the project: Calculon's equations, with and without an LM head.
"""

from __future__ import annotations

from cona.cost.base import AnalyticalModel, TimeModel
from cona.cost.calculon import Calculon
from cona.cost.head import CalculonWithHead
from cona.cost.memory import MemoryModel, PaperMemory
from cona.cost.switch import SwitchCost
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec, ModelSpec

__all__ = ["MemoryModel", "PaperMemory", "SwitchCost", "TimeModel", "time_model", "time_models"]

_MODELS: dict[str, tuple[type[AnalyticalModel], str]] = {
    "calculon": (Calculon, "Calculon's equations (Isaev et al. 2023), as the paper plans with"),
    "calculon+head": (CalculonWithHead, "Calculon's equations plus the LM head (provisional)"),
}


def time_models() -> dict[str, str]:
    """Return the time models' names with one line on each."""
    return {name: line for name, (_, line) in _MODELS.items()}


def time_model(name: str, model: ModelSpec, cluster: ClusterSpec) -> TimeModel:
    """Return the time model of a name for one model on one cluster.

    Args:
        name: a key of ``time_models()``.
        model: the model that is priced.
        cluster: the target cluster.

    Raises:
        ConfigError: no such time model or GPU type (the nearest is offered).
    """
    if name not in _MODELS:
        raise ConfigError(f"unknown time model '{name}': {nearest(name, _MODELS)}")
    return _MODELS[name][0](model, cluster)
