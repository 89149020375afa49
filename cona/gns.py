"""The gradient noise scale (GNS) in samples, unbiased, smoothed, with its interval.

Source: method.md 2, after McCandlish et al. 2018 (arXiv 1812.06162), appendix A.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace

from cona.errors import ConfigError
from cona.runlog import finite

Z_90 = 1.6448536269514722
"""Two-sided 90 % quantile of the normal distribution."""

UNBOUNDED_SE = 0.5
"""Standard error of log GNS above which the interval has no upper end."""

LARGEST_TERM = 1e150
"""Terms and norms above it are as good as infinite: their squares would not be finite."""


def is_finite(*terms: float) -> bool:
    """Return whether terms are numbers that can be squared; NaN is none."""
    return all(abs(term) <= LARGEST_TERM for term in terms)


@dataclass(frozen=True, kw_only=True)
class GradientTerms:
    """The two unbiased terms of one iteration; their smoothed ratio is the GNS."""

    tr_sigma: float
    """Trace of the per-sample gradient covariance."""
    mu_sq: float
    """Squared norm of the true gradient; may be negative, being an unbiased estimate."""


def gradient_terms(
    sum_sq_microbatch: float | None, grad_norm: float, num_microbatches: int, gbs: int
) -> GradientTerms | None:
    """Return one iteration's unbiased terms, or None where they do not exist.

    Args:
        sum_sq_microbatch: mean_i |g_i|^2 over the n micro-batch gradients (for BERT weighted by
            k_i/K), before clipping.
        grad_norm: |G|, the norm of their mean; one that is not finite gives no terms.
        num_microbatches: n; fewer than two give no estimate.
        gbs: B = n*b, samples of the iteration.

    Source: method.md 2.
    """
    n = num_microbatches
    if sum_sq_microbatch is None or n < 2 or not is_finite(sum_sq_microbatch, grad_norm):
        return None
    mean_sq, g_sq = sum_sq_microbatch, grad_norm**2
    tr_sigma = (mean_sq - g_sq) * gbs / (n - 1)
    mu_sq = (n * g_sq - mean_sq) / (n - 1)
    if not is_finite(tr_sigma, mu_sq):
        return None
    return GradientTerms(tr_sigma=tr_sigma, mu_sq=mu_sq)


@dataclass(frozen=True, kw_only=True)
class GnsEstimate:
    """Smoothed terms and the variances of these two means. Source: method.md 2, Interval."""

    num_terms: int
    """Iterations that contributed."""
    tr_sigma: float
    """xb: smoothed tr_sigma."""
    mu_sq: float
    """yb: smoothed mu_sq."""
    var_xx: float
    """Variance of xb; infinite with fewer than two terms."""
    var_yy: float
    """Variance of yb."""
    var_xy: float
    """Covariance of xb and yb."""

    @property
    def is_known(self) -> bool:
        """Whether both means exist: there were terms, and they are finite."""
        return self.num_terms > 0 and is_finite(self.tr_sigma, self.mu_sq)

    @property
    def gns(self) -> float | None:
        """The GNS in samples; None without terms, if it is no number, or while mu_sq <= 0."""
        if not self.is_known or self.mu_sq <= 0 or self.tr_sigma < 0:
            return None
        return finite(self.tr_sigma / self.mu_sq)

    @property
    def se_log(self) -> float | None:
        """Standard error of log GNS (delta method); None where the GNS or a variance is missing."""
        if self.gns is None or self.num_terms < 2 or self.tr_sigma <= 0:
            return None
        x, y = self.tr_sigma, self.mu_sq
        if not all(0 < product < math.inf for product in (x * x, y * y, x * y)):
            return None
        variance = self.var_xx / x**2 + self.var_yy / y**2 - 2 * self.var_xy / (x * y)
        return None if math.isnan(variance) else math.sqrt(max(variance, 0.0))

    def scaled(self, factor: float) -> GnsEstimate:
        """Return the estimate of a gradient that is noisier by a factor; the interval follows.

        Args:
            factor: multiplies the GNS, being positive.
        """
        return replace(
            self,
            tr_sigma=self.tr_sigma * factor,
            var_xx=self.var_xx * (factor * factor),
            var_xy=self.var_xy * factor,
        )

    def interval(self, z: float = Z_90) -> tuple[float | None, float | None]:
        """Return (low, high) in samples; None as high means unbounded, as low: no estimate."""
        gns, se = self.gns, self.se_log
        if gns is None or se is None:
            return None, None
        high = None if se > UNBOUNDED_SE else finite(gns * math.exp(z * se))
        return gns * math.exp(-z * se), high


NO_ESTIMATE = GnsEstimate(
    num_terms=0, tr_sigma=0.0, mu_sq=0.0, var_xx=math.inf, var_yy=math.inf, var_xy=0.0
)


@dataclass(kw_only=True)
class _Sums:
    """Exponentially weighted sums; `1` suffixes weigh by u_i, `2` suffixes by u_i^2."""

    u1: float = 0.0
    x1: float = 0.0
    y1: float = 0.0
    u2: float = 0.0
    x2: float = 0.0
    y2: float = 0.0
    xx2: float = 0.0
    yy2: float = 0.0
    xy2: float = 0.0


class GradientNoiseScale:
    """Smooths gradient terms per consumed sample, so equally at every batch size.

    The weights u_i = (1 - d_i) * prod_{j>i} d_j with d_i = decay**gbs_i are normalised to w_i
    (bias correction). Residual products are kept as sums of u_i^2 times x, y and their products,
    from which the spec's sum of w_i^2 (x_i - xb)(y_i - yb) / (1 - q) follows exactly.

    Args:
        decay_per_sample: EMA decay per consumed sample, in (0, 1).

    Source: method.md 2.
    """

    def __init__(self, decay_per_sample: float = 0.999) -> None:
        if not 0 < decay_per_sample < 1:
            raise ConfigError(
                f"decay_per_sample {decay_per_sample}: must lie between 0 and 1, e.g. 0.999"
            )
        self.decay_per_sample = decay_per_sample
        self.num_terms = 0
        self.num_dropped = 0
        self._sums = _Sums()

    def update(self, terms: GradientTerms | None, gbs: int) -> None:
        """Add one iteration of ``gbs`` samples; None (no or non-finite terms) is only counted."""
        if terms is None or not is_finite(terms.tr_sigma, terms.mu_sq):
            self.num_dropped += 1
            return
        x, y = terms.tr_sigma, terms.mu_sq
        decay = self.decay_per_sample**gbs
        new = {"1": 1 - decay, "2": (1 - decay) ** 2}
        old = {"1": decay, "2": decay**2}
        values = {"u": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
        for field in fields(self._sums):
            name, power = field.name[:-1], field.name[-1]
            total = old[power] * getattr(self._sums, field.name) + new[power] * values[name]
            setattr(self._sums, field.name, total)
        self.num_terms += 1

    def estimate(self) -> GnsEstimate:
        """Return the current estimate with its variances."""
        s = self._sums
        if self.num_terms == 0:
            return NO_ESTIMATE
        xb, yb, q = s.x1 / s.u1, s.y1 / s.u1, s.u2 / s.u1**2
        if 1 - q < 1e-12:  # one term carries all the weight: no residual to judge by
            xx = yy = math.inf
            xy = 0.0
        else:
            scale = 1 / (s.u1**2 * (1 - q))
            xx = max(0.0, s.xx2 - 2 * xb * s.x2 + xb * xb * s.u2) * scale
            yy = max(0.0, s.yy2 - 2 * yb * s.y2 + yb * yb * s.u2) * scale
            xy = (s.xy2 - xb * s.y2 - yb * s.x2 + xb * yb * s.u2) * scale
        return GnsEstimate(
            num_terms=self.num_terms, tr_sigma=xb, mu_sq=yb, var_xx=xx, var_yy=yy, var_xy=xy
        )

    def state_dict(self) -> dict[str, float]:
        """Return everything that a checkpoint must hold."""
        counts = {"num_terms": self.num_terms, "num_dropped": self.num_dropped}
        return {"decay_per_sample": self.decay_per_sample, **counts, **asdict(self._sums)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a state that ``state_dict`` returned."""
        self.decay_per_sample = state["decay_per_sample"]
        self.num_terms, self.num_dropped = int(state["num_terms"]), int(state["num_dropped"])
        self._sums = _Sums(**{field.name: state[field.name] for field in fields(_Sums)})

    def copy(self) -> GradientNoiseScale:
        """Return an independent copy."""
        twin = GradientNoiseScale(self.decay_per_sample)
        twin.load_state_dict(self.state_dict())
        return twin
