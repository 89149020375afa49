"""What an advisor is shown of a training: norms of gradients, iterations, where it is.

Source: method.md 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from cona.gns import GradientTerms, gradient_terms
from cona.strategy import Strategy, Techniques


@dataclass(frozen=True, kw_only=True)
class SquaredNorms:
    """What one iteration tells about its gradient noise: n gradients g_i and their mean G."""

    mean_sq: float
    """mean_i |g_i|^2, before clipping."""
    sq_of_mean: float
    """|G|^2, before clipping."""
    num_gradients: int
    """n; each is the mean over the same number of samples. Fewer than two tell nothing."""

    def terms(self, gbs: int) -> GradientTerms | None:
        """Return the unbiased terms of an iteration of ``gbs`` samples; None: there are none."""
        norm = math.sqrt(self.sq_of_mean) if self.sq_of_mean >= 0 else math.nan
        return gradient_terms(self.mean_sq, norm, self.num_gradients, gbs)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One iteration as it was shown: what a restored advisor is shown again."""

    strategy: Strategy
    seconds: float
    terms: GradientTerms | None
    switch_s: float | None
    is_warmup: bool

    @property
    def row(self) -> list[Any]:
        """Plain values for a checkpoint."""
        terms = [self.terms.tr_sigma, self.terms.mu_sq] if self.terms else [None, None]
        return [str(self.strategy), self.seconds, *terms, self.switch_s, self.is_warmup]

    @classmethod
    def of(cls, row: list[Any], techniques: Techniques) -> Seen:
        """Return the iteration of a row; its strategy's text does not hold the techniques."""
        text, seconds, tr_sigma, mu_sq, switch_s, is_warmup = row
        known = tr_sigma is not None and mu_sq is not None
        return cls(
            strategy=replace(Strategy.parse(text), techniques=techniques),
            seconds=seconds,
            terms=GradientTerms(tr_sigma=tr_sigma, mu_sq=mu_sq) if known else None,
            switch_s=switch_s,
            is_warmup=is_warmup,
        )


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a training is; the beginning by default."""

    iteration: int = 0
    samples: int = 0
    train_s: float = 0.0
    """Seconds of iterations and changes of layout."""

    def after(self, seen: Seen) -> Point:
        """Return where it is after an iteration."""
        return Point(
            iteration=self.iteration + 1,
            samples=self.samples + seen.strategy.gbs,
            train_s=self.train_s + seen.seconds + (seen.switch_s or 0.0),
        )
