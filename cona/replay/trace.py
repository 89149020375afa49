"""Gradient noise that was recorded, to be shown to a policy again: a CSV of GNS, or a run.

Source: issue 5 (`cona replay`); method.md 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cona.errors import ConfigError
from cona.gns import Z_90, GnsEstimate, GradientNoiseScale, GradientTerms
from cona.runlog import read_records


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What a policy is shown of the gradient noise after an iteration."""

    terms: GradientTerms | None
    """The iteration's own terms."""
    estimate: GnsEstimate
    """The smoothed estimate."""


class Player(Protocol):
    """One showing of a trace, from its start."""

    def advance(self, samples: int) -> Noise:
        """Return the noise after the iteration that ends at ``samples`` consumed samples.

        It is called once for each iteration, in order.
        """


class Trace(Protocol):
    """A recorded trace of gradient noise over consumed samples."""

    @property
    def last_samples(self) -> float:
        """Consumed samples at the last record; later ones see its noise."""

    def play(self, decay_per_sample: float) -> Player:
        """Return a showing from the start; the decay is that of the policy's smoothing."""


# --- a CSV of noise scales ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GnsTrace:
    """GNS over samples: linear between rows, held before the first and after the last.

    Only the ratio of the two terms is known, so mu_sq is 1 and tr_sigma is the GNS, in the smoothed
    estimate and in each iteration's own terms. The standard error of log GNS is gns_se/gns, all of
    it mu_sq's, the small difference of large numbers and hence the noisier term. A trace without
    gns_se counts as known exactly.
    """

    samples: NDArray[np.float64]
    """Consumed samples of each row, ascending, shape [rows]."""
    gns: NDArray[np.float64]
    """Noise scale in samples, positive."""
    gns_se: NDArray[np.float64]
    """Its standard error in samples; 0 where it is known exactly."""

    @property
    def last_samples(self) -> float:
        """Consumed samples of the last row."""
        return float(self.samples[-1])

    def play(self, decay_per_sample: float) -> Player:
        """Return a showing from the start; the rows are smoothed already, so no decay is used."""
        return _GnsPlayer(self)


def noise_of(gns: float, gns_se: float, num_terms: int) -> Noise:
    """Return what a policy sees of a GNS that is known only as a ratio: its mu_sq is 1.

    Args:
        gns: in samples.
        gns_se: its standard error, in samples.
        num_terms: iterations shown so far.
    """
    estimate = GnsEstimate(
        num_terms=num_terms,
        tr_sigma=gns,
        mu_sq=1.0,
        var_xx=0.0,
        var_yy=(gns_se / gns) ** 2,
        var_xy=0.0,
    )
    return Noise(terms=GradientTerms(tr_sigma=gns, mu_sq=1.0), estimate=estimate)


class _GnsPlayer:
    def __init__(self, trace: GnsTrace) -> None:
        self._trace, self._num_terms = trace, 0

    def advance(self, samples: int) -> Noise:
        """Return the row at ``samples`` consumed samples, linear between two."""
        trace = self._trace
        self._num_terms += 1
        gns = float(np.interp(samples, trace.samples, trace.gns))
        gns_se = float(np.interp(samples, trace.samples, trace.gns_se))
        return noise_of(gns, gns_se, self._num_terms)


# --- a recorded run -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One iteration of a recorded run."""

    samples: int
    """Samples consumed after it."""
    gbs: int
    """Samples of the iteration."""
    terms: GradientTerms | None
    """Its unbiased terms; None where not measured or the update was skipped."""
    gns: float | None
    """The smoothed GNS after it, samples; None: no estimate."""
    gns_low: float | None
    """Lower end of its 90 % interval; None: no estimate."""

    @property
    def gns_se(self) -> float | None:
        """Standard error of the GNS in samples, from its interval; None: unknown."""
        if not (self.gns and self.gns_low and 0 < self.gns_low <= self.gns < math.inf):
            return None
        return self.gns * math.log(self.gns / self.gns_low) / Z_90


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The gradient terms of a run, iteration by iteration.

    A showing smooths each recorded iteration when the samples consumed pass it. Under the batch
    sizes of the recorded run this is what the run saw, to the last digit; under others it is the
    same smoothing per sample, as if the noise depended on the samples alone.
    """

    steps: tuple[RecordedStep, ...]

    @property
    def last_samples(self) -> float:
        """Consumed samples after the last iteration."""
        return float(self.steps[-1].samples)

    def play(self, decay_per_sample: float) -> Player:
        """Return a showing from the start, smoothed by a decay per sample."""
        return _RecordingPlayer(self.steps, GradientNoiseScale(decay_per_sample))


class _RecordingPlayer:
    def __init__(self, steps: Sequence[RecordedStep], gns: GradientNoiseScale) -> None:
        self._steps, self._gns, self._next = steps, gns, 0

    def advance(self, samples: int) -> Noise:
        """Return the recorded noise up to ``samples`` consumed samples, smoothed."""
        is_over = self._next == len(self._steps)
        passed: list[RecordedStep] = []
        while self._next < len(self._steps) and self._steps[self._next].samples <= samples:
            step = self._steps[self._next]
            self._gns.update(step.terms, step.gbs)
            passed.append(step)
            self._next += 1
        estimate = self._gns.estimate()
        if is_over and estimate.num_terms:  # beyond the end the last estimate is held
            held = GradientTerms(tr_sigma=estimate.tr_sigma, mu_sq=estimate.mu_sq)
            return Noise(terms=held, estimate=estimate)
        return Noise(terms=_mean(passed), estimate=estimate)


def _mean(steps: Sequence[RecordedStep]) -> GradientTerms | None:
    """Return the terms of one iteration over the samples of several; None without any."""
    known = [(step.gbs, step.terms) for step in steps if step.terms]
    if len(known) < 2:
        return known[0][1] if known else None
    samples = sum(gbs for gbs, _ in known)
    return GradientTerms(
        tr_sigma=sum(gbs * terms.tr_sigma for gbs, terms in known) / samples,
        mu_sq=sum(gbs * terms.mu_sq for gbs, terms in known) / samples,
    )


def read_recording(metrics: Path) -> Recording:
    """Read the iterations of a run's metrics.jsonl.

    Raises:
        ConfigError: there is no such file, or it holds no iteration.
        RunError: a line is not JSON.
    """
    if not metrics.is_file():
        raise ConfigError(f"{metrics}: no such file; a run directory holds metrics.jsonl")
    records = [record for record in read_records(metrics) if record.get("kind") == "step"]
    if not records:
        raise ConfigError(f"{metrics}: it holds no iteration (kind: step), so there is no trace")
    steps = tuple(_step(record, metrics) for record in records)
    for before, step in pairwise(steps):
        if step.samples <= before.samples:
            raise ConfigError(
                f"{metrics}: samples {step.samples} come after {before.samples}; run it again"
            )
    return Recording(steps=steps)


def _step(record: dict[str, Any], metrics: Path) -> RecordedStep:
    try:
        x, y = record["tr_sigma"], record["mu_sq"]
        is_known = x is not None and y is not None and not record["skipped"]
        step = RecordedStep(
            samples=int(record["samples"]),
            gbs=int(record["gbs"]),
            terms=GradientTerms(tr_sigma=float(x), mu_sq=float(y)) if is_known else None,
            gns=_float(record["gns"]),
            gns_low=_float(record["gns_low"]),
        )
    except KeyError as error:
        where = f"{metrics}, iteration {record.get('iteration')}"
        raise ConfigError(f"{where}: key {error} is missing; run it again") from error
    except (TypeError, ValueError, OverflowError) as error:
        where = f"{metrics}, iteration {record.get('iteration')}"
        raise ConfigError(f"{where}: {error}; run it again") from error
    if step.gbs < 1 or step.samples < step.gbs:
        raise ConfigError(
            f"{metrics}, iteration {record.get('iteration')}: gbs {step.gbs} and samples "
            f"{step.samples} cannot be; run it again"
        )
    return step


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
