"""The constants of the improved cost model for one GPU type, and where they are kept.

Source: cost-model.md, calibration
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from cona.config import load_file
from cona.errors import ConfigError, nearest
from cona.specs import Spec
from cona.storage import put

PROFILES = ("debug", "megatron-deepspeed", "tuned")
"""Software stacks: deterministic unfused test runs; unfused training code; fused kernels."""

SAME_CHIP = {"a100-40g": "a100-80g", "v100-16g": "v100-32g"}
"""GPU types that share the constants of another: the same chip with other memory."""

Share = Annotated[float, Field(gt=0, le=1)]


class Constants(Spec):
    """What a GPU and its software reach of the data sheet: the model's only free numbers."""

    gemm_efficiency: Share
    """Fraction of the tensor cores' peak that a very large matrix product reaches."""
    gemm_edge: NonNegativeFloat
    """Elements at which a dimension of a matrix product costs a third of its time more."""
    flash_efficiency: Share
    """Fraction of the tensor cores' peak that fused attention reaches, both passes."""
    attention_bytes: PositiveFloat
    """Bytes moved per attention score, forward and backward, without fused attention."""
    elementwise_bytes: PositiveFloat
    """Bytes moved per element of the residual stream and layer by fused kernels, both passes."""
    unfused_elementwise_bytes: PositiveFloat
    """The same in the stacks without fused kernels."""
    loss_bytes: PositiveFloat
    """Bytes moved per logit by the loss, both passes."""
    unsplit_loss_bytes: PositiveFloat
    """The same in stacks without fused kernels where tp = 1 and the loss is not split."""
    hbm_efficiency: Share
    """Fraction of the memory's bandwidth that element-wise kernels reach."""
    optimizer_bytes: PositiveFloat
    """Bytes moved per parameter by a step of Adam, gradient clipping included."""
    intra_rate: PositiveFloat
    """Rate of collectives inside a node over the link's bandwidth times efficiency."""
    inter_rate: PositiveFloat
    """Rate of collectives between nodes over the link's bandwidth times efficiency."""
    overlap: Share
    """Part of the gradient reduction that an overlapped backward pass hides."""
    tp_sync_s: NonNegativeFloat
    """Seconds for which tensor-parallel ranks wait for each other at every collective."""
    head_layers: NonNegativeFloat
    """Kernel launches of embedding, LM head and loss, in those of a layer."""
    launch_s: dict[str, NonNegativeFloat]
    """Seconds that launching a layer's kernels takes, both passes, by profile."""


class Residual(Spec):
    """How far a calibration is from a group of measured rows."""

    group: str
    """Name of the group in the data."""
    num_rows: PositiveInt
    """Measured rows."""
    median: NonNegativeFloat
    """Median absolute relative error of rows whose shape was left out of the fit."""
    p90: NonNegativeFloat
    """90 % quantile of the same."""
    fit_median: NonNegativeFloat
    """Median absolute relative error in the fit itself."""


class Calibration(Spec):
    """Constants of a GPU type with what is known about their quality."""

    gpu: str
    """GPU type."""
    calibrated: bool
    """Fitted on measured rows (True), or taken over from another type by data sheet (False)."""
    source: str
    """Where the rows come from."""
    date: str
    """Day of the fit, ISO 8601."""
    fitted: tuple[str, ...] = ()
    """Constants that the rows determined; the others are counted or ASSUMED."""
    constants: Constants
    """The constants."""
    residuals: tuple[Residual, ...] = ()
    """Errors by group of rows."""

    def save(self, path: Path) -> None:
        """Write the calibration as YAML; raises ConfigError if the file cannot be written."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=100)
        try:
            put(path, text.encode())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error


def shipped() -> list[str]:
    """Return the GPU types whose calibration is part of the package."""
    return sorted(p.stem for p in (Path(__file__).parent / "calibrations").glob("*.yaml"))


@cache
def load(name: str) -> Calibration:
    """Return a calibration by GPU type, or from a path that ends in ``.yaml``.

    Raises:
        ConfigError: no such GPU type or file, or a value breaks a rule.
    """
    if name.endswith((".yaml", ".yml")):
        return load_file(Calibration, Path(name))
    stem = SAME_CHIP.get(name, name)
    if stem not in shipped():
        raise ConfigError(f"no calibration for GPU '{name}': {nearest(name, shipped())}")
    return load_file(Calibration, Path(__file__).parent / "calibrations" / f"{stem}.yaml")
