"""Learning rate as a function of consumed tokens and of the global batch size.

Source: method.md 5.
"""

from __future__ import annotations

import math

from cona.specs import LearningRateSpec, LrRule, ModelSpec

_PIECEWISE_PIVOT = 32


def batch_factor(rule: LrRule, gbs: int, base_gbs: int, gns: float | None = None) -> float:
    """Return the factor of the base learning rate at a global batch size.

    Args:
        rule: linear (the release), sqrt (usual for Adam), power (exponent 0.25), piecewise
            (exponent 0.5 up to 32 samples, 0.25 above), adascale (Johnson et al. 2020) or
            cona_adascale (what the release calls so; the reverse in its limits), or constant.
        gbs: global batch size, samples.
        base_gbs: batch size at which the factor is 1, samples.
        gns: noise scale in samples, frozen at the switch; infinity while mu_sq is not positive;
            None, without any term yet, gives 1 (adascale rules).
    """
    ratio = gbs / base_gbs
    match rule:
        case "constant":
            return 1.0
        case "linear":
            return ratio
        case "sqrt":
            return math.sqrt(ratio)
        case "power":
            return ratio**0.25
        case "piecewise":
            low = min(gbs, _PIECEWISE_PIVOT) / min(base_gbs, _PIECEWISE_PIVOT)
            high = max(gbs, _PIECEWISE_PIVOT) / max(base_gbs, _PIECEWISE_PIVOT)
            return low**0.5 * high**0.25
        case "adascale":
            if gns is None or gns == math.inf:
                return 1.0 if gns is None else ratio
            return ratio * (gns + base_gbs) / (gns + gbs)
        case "cona_adascale":
            if gns is None or gns == math.inf:
                return 1.0
            return (gns + gbs) / (gns + base_gbs)


def needs_gns(rule: LrRule) -> bool:
    """Return whether the rule uses the noise scale, frozen at each switch."""
    return rule in ("adascale", "cona_adascale")


class LearningRate:
    """The schedule of one model: linear warm-up, then cosine, scaled by the batch size.

    Args:
        spec: the tier's rule.
        model: the trained model, for base_lr, min_lr and the decay horizon.
        rule: replaces the tier's rule (a policy may bring its own).
    """

    def __init__(
        self, spec: LearningRateSpec, model: ModelSpec, rule: LrRule | None = None
    ) -> None:
        self.spec, self.training, self.seq_length = spec, model.training, model.seq_length
        self.rule: LrRule = rule or spec.rule
        self.decay_tokens = (
            spec.decay_samples * model.seq_length
            if spec.decay_samples
            else model.training.decay_tokens
        )

    @property
    def warmup_samples(self) -> float:
        """Samples of the linear warm-up."""
        return self.training.warmup_fraction * self.decay_tokens / self.seq_length

    def factor(self, gbs: int, gns: float | None = None) -> float:
        """Return the capped batch factor; ``gns`` (samples) only matters to adascale rules."""
        factor = batch_factor(self.rule, gbs, self.spec.base_gbs, gns)
        return min(factor, self.spec.factor_max) if self.spec.factor_max else factor

    def at(self, tokens: int, factor: float) -> float:
        """Return the learning rate of the iteration that ends at ``tokens`` consumed tokens."""
        peak = factor * self.training.base_lr
        floor = self.training.min_lr * (factor if self.spec.scale_min else 1.0)
        warmup = self.training.warmup_fraction * self.decay_tokens
        if tokens < warmup:
            return peak * tokens / warmup
        done = min(1.0, (tokens - warmup) / (self.decay_tokens - warmup))
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))
