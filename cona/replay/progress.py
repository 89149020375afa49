"""Time to a given progress on recorded gradient noise: of a chain, and of one strategy.

Progress is counted in noiseless steps: an iteration at batch B progresses B/(B + GNS) of one
(method.md 3). The noise of a recorded run is kept by its progress instead of its samples, for a
model's state follows its progress: a strategy that needs more samples for the same progress then
meets the same noise. `ProgressNoise` is a trace like any other: any policy can be replayed on it.

    noise = ProgressNoise.of(read_recording(run / "metrics.jsonl")).scaled(4)
    done = replay(ReplayRequest(tier=tier, model=model, policy="cona"), noise)
    chain_time_s(done.stages, noise)                              # None: its budget ended before
    fixed_time_s(strategy.gbs, reference.time_s(strategy), noise)

Both count to ``noise.end_steps``, the whole progress of the recorded run, or to another number of
noiseless steps. Nothing is trained: what a learning rate or a change of batch size does beside its
noise is left out. A budget that lets every chain end: `iterations_needed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cona.errors import RunError
from cona.replay.trace import Noise, Player, Recording, noise_of
from cona.replay.walk import ReplayStage

Floats = NDArray[np.float64]
ROUNDING = 1e-9
"""Relative difference by which a chain may miss its target: sums are not exact."""


@dataclass(frozen=True, kw_only=True)
class ProgressNoise:
    """GNS over progress, constant on the stretch of each recorded iteration; held beyond the end.

    The smoothed GNS of the run counts as the true one, and is what a policy is shown.
    """

    steps: Floats
    """Progress in noiseless steps at the ends of the stretches, from 0, shape [stretches + 1]."""
    gns: Floats
    """Noise scale in samples, positive, shape [stretches]."""
    gns_se: Floats
    """Its standard error in samples, 0 where unknown, shape [stretches]."""

    @classmethod
    def of(cls, recording: Recording) -> ProgressNoise:
        """Return the noise of a recorded run by its own progress.

        An iteration without an estimate takes the one before, the first ones take the first.

        Raises:
            RunError: no iteration has an estimate.
        """
        rows = [(s.gns, s.gns_se) if s.gns and s.gns > 0 else None for s in recording.steps]
        known = [row for row in rows if row]
        if not known:
            raise RunError("the run has no iteration with a noise scale: it shows no progress")
        filled, last = [], known[0]
        for row in rows:
            last = row or last
            filled.append(last)
        gns = np.array([value for value, _ in filled], dtype=np.float64)
        gns_se = np.array([error or 0.0 for _, error in filled])
        gbs = np.array([s.gbs for s in recording.steps], dtype=np.float64)
        steps = np.concatenate([[0.0], np.cumsum(gbs / (gbs + gns))])
        return cls(steps=steps, gns=gns, gns_se=gns_se)

    def scaled(self, factor: float) -> ProgressNoise:
        """Return the noise of a model whose gradients are so many times noisier, state by state."""
        return replace(self, gns=self.gns * factor, gns_se=self.gns_se * factor)

    @property
    def end_steps(self) -> float:
        """Progress of the whole recorded run, noiseless steps."""
        return float(self.steps[-1])

    @property
    def last_samples(self) -> float:
        """Infinity: how many samples the progress takes depends on the strategies."""
        return math.inf

    def play(self, decay_per_sample: float) -> Player:
        """Return a showing from the start; the noise is smoothed already, so no decay is used."""
        return _ProgressPlayer(self)

    def iterations(self, gbs: int) -> Floats:
        """Return the iterations at one batch size up to each end of a stretch.

        Args:
            gbs: samples per iteration.

        Returns:
            Numbers of iterations, fractions kept, shape [stretches + 1].
        """
        needed = np.diff(self.steps) * (gbs + self.gns) / gbs
        return np.concatenate([[0.0], np.cumsum(needed)])

    def at(self, steps: float) -> int:
        """Return the stretch that holds a progress, the last one beyond the end."""
        found = int(np.searchsorted(self.steps, steps, side="right")) - 1
        return min(found, len(self.gns) - 1)


class _ProgressPlayer:
    """Counts the progress of the iterations that it is told of, and shows the noise there."""

    def __init__(self, noise: ProgressNoise) -> None:
        self._noise = noise
        self._samples, self._steps, self._num_terms = 0, 0.0, 0
        self._iterations: dict[int, Floats] = {}

    def advance(self, samples: int) -> Noise:
        """Return the noise where an iteration up to ``samples`` consumed samples leads."""
        noise, gbs = self._noise, samples - self._samples
        if gbs not in self._iterations:
            self._iterations[gbs] = noise.iterations(gbs)
        done = np.interp(self._steps, noise.steps, self._iterations[gbs])
        self._steps = float(np.interp(done + 1, self._iterations[gbs], noise.steps))
        self._samples = samples
        self._num_terms += 1
        at = noise.at(self._steps)
        return noise_of(float(noise.gns[at]), float(noise.gns_se[at]), self._num_terms)


def chain_time_s(
    stages: Sequence[ReplayStage], noise: ProgressNoise, target_steps: float | None = None
) -> float | None:
    """Return the seconds that a replayed chain takes to a progress, its switches included.

    Args:
        stages: of a replay on the same noise.
        noise: how much an iteration progresses.
        target_steps: noiseless steps, at most the noise's end; None: the end.

    Returns:
        Seconds of the train clock; None: the chain ended before.
    """
    target = noise.end_steps if target_steps is None else target_steps
    steps, seconds = 0.0, 0.0
    for stage in stages:
        upto = noise.iterations(stage.strategy.gbs)
        done, needed = np.interp([steps, target], noise.steps, upto)
        seconds += stage.switch_s
        if needed - done <= stage.num_iterations + ROUNDING * needed:
            return seconds + float(needed - done) * stage.iteration_s
        seconds += stage.compute_s
        steps = float(np.interp(done + stage.num_iterations, upto, noise.steps))
    return None


def fixed_time_s(
    gbs: int, iteration_s: float, noise: ProgressNoise, target_steps: float | None = None
) -> float:
    """Return the seconds that one strategy takes to a progress.

    Args:
        gbs: its global batch size, samples.
        iteration_s: T of it, seconds.
        noise: how much an iteration progresses.
        target_steps: noiseless steps, at most the noise's end; None: the end.
    """
    target = noise.end_steps if target_steps is None else target_steps
    return iteration_s * float(np.interp(target, noise.steps, noise.iterations(gbs)))


def iterations_needed(rungs: Iterable[int], noise: ProgressNoise) -> int:
    """Return the iterations that the slowest of some batch sizes needs to the noise's end."""
    return math.ceil(max(float(noise.iterations(gbs)[-1]) for gbs in rungs))
