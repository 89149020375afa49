"""Learning rate as a function of consumed tokens and of the global batch size.

Source: method.md 5.
"""

from __future__ import annotations

import math

from cona.specs import LearningRateSpec, LrRule, ModelSpec

_PIECEWISE_PIVOT = 32

_MOST_HALVINGS = 10
"""ASSUMED: a cosine that ends at zero is followed down to a thousandth of its peak."""

_ROUNDING = 1e-9
"""Half of the peak may come out this much above it, relatively."""


def batch_factor(rule: LrRule, gbs: int, base_gbs: int, gns: float | None = None) -> float:
    """Return the factor of the base learning rate at a global batch size.

    Args:
        rule: linear (the release), sqrt (usual for Adam), power (exponent 0.25), piecewise
            (exponent 0.5 up to 32 samples, 0.25 above), adascale (Johnson et al. 2020) or
            cona_adascale (what the release calls so; the reverse in its limits), constant, or
            seesaw and seesaw_to_zero (Meterez et al. 2025), whose factor is that of sqrt.
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
        case "sqrt" | "seesaw" | "seesaw_to_zero":
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
        warmup = self.training.warmup_fraction * self.decay_tokens
        if tokens < warmup:
            return peak * tokens / warmup
        if self.rule in ("seesaw", "seesaw_to_zero"):
            return peak * 0.5 ** self.num_halvings(tokens)
        floor = self.training.min_lr * (factor if self.spec.scale_min else 1.0)
        return floor + (peak - floor) * self._cosine(tokens)

    def num_halvings(self, tokens: int) -> int:
        """Return how often the cosine of the base batch has halved at ``tokens`` consumed tokens.

        The cosine ends at min_lr; under seesaw_to_zero, at zero.

        Source: baselines.md 16
        """
        peak, end = self.training.base_lr, self.training.min_lr
        if self.rule == "seesaw_to_zero":
            end = 0.0
        now = max(end + (peak - end) * self._cosine(tokens), peak * 0.5**_MOST_HALVINGS)
        return int(math.log2(peak / now * (1 + _ROUNDING)))

    def _cosine(self, tokens: int) -> float:
        """Return what the cosine leaves of the decay: 1 until the warm-up ends, 0 at its end."""
        warmup = self.training.warmup_fraction * self.decay_tokens
        done = min(1.0, max(0.0, (tokens - warmup) / (self.decay_tokens - warmup)))
        return 0.5 * (1 + math.cos(math.pi * done))
