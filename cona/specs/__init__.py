"""What an experiment is about: models, clusters, and the settings of a tier.

Each class is one YAML mapping under ``config/``; ``cona.config`` loads and validates them.

- base: the types of their values
- model, cluster: what is trained, and where
- tier, sections: the size of the experiment, and the sections of its file
- scale: another size of any tier
"""

from cona.specs.base import (
    LARGEST_COUNT,
    Count,
    Fraction,
    Name,
    NonNegative,
    NonNegativeCount,
    Positive,
    Seed,
    Spec,
)
from cona.specs.cluster import LARGEST_CLUSTER, ClusterSpec, LinkSpec
from cona.specs.model import MOST_LAYERS, ModelSpec, TrainingSpec
from cona.specs.scale import ScaleSpec
from cona.specs.sections import (
    LARGEST_GBS,
    BudgetSpec,
    ClockKind,
    ClockSpec,
    ControllerSpec,
    DataSpec,
    DivergenceSpec,
    EngineKind,
    EngineSpec,
    EvaluationSpec,
    GnsSpec,
    JobSpec,
    LadderSpec,
    LearningRateSpec,
    LrRule,
    OracleSpec,
    SwitchCostPreset,
)
from cona.specs.tier import TierSpec

__all__ = [
    "LARGEST_CLUSTER",
    "LARGEST_COUNT",
    "LARGEST_GBS",
    "MOST_LAYERS",
    "BudgetSpec",
    "ClockKind",
    "ClockSpec",
    "ClusterSpec",
    "ControllerSpec",
    "Count",
    "DataSpec",
    "DivergenceSpec",
    "EngineKind",
    "EngineSpec",
    "EvaluationSpec",
    "Fraction",
    "GnsSpec",
    "JobSpec",
    "LadderSpec",
    "LearningRateSpec",
    "LinkSpec",
    "LrRule",
    "ModelSpec",
    "Name",
    "NonNegative",
    "NonNegativeCount",
    "OracleSpec",
    "Positive",
    "ScaleSpec",
    "Seed",
    "Spec",
    "SwitchCostPreset",
    "TierSpec",
    "TrainingSpec",
]
