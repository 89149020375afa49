"""Bayesian optimisation inside one global batch size, as the paper searches.

Source: method.md 4, `bo`. For cases in which an evaluation is a measurement; where T comes from a
model, `cona.search` looks at every strategy and is exact. BoTorch is an extra, imported when used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from cona.cost import TimeModel
from cona.cost.gpus import Floats
from cona.errors import ConfigError
from cona.strategy import Strategy

NUM_FIRST = 10
"""Latin-hypercube points before the first Gaussian process."""
MAX_UPDATES = 100
"""Evaluations after those points."""
STOP_FRACTION = 0.1
"""Stop when the largest expected improvement is below this fraction of the best T."""
AXES = ("dp", "tp", "pp", "mbs")
"""The Gaussian process lives on log2 of these."""


def require_botorch() -> None:
    """Raise ConfigError if the extra `bo` is not installed."""
    if importlib.util.find_spec("botorch") is None:
        raise ConfigError(
            "search = bo needs botorch, which is not installed: install the extra with "
            "pip install 'cona-bench[bo]', or use search = exhaustive"
        )


class BayesianSearch:
    """Seeks the smallest T among finitely many strategies; ask with ``propose``, then ``tell``.

    Expected improvement is computed for every strategy that is not evaluated yet, so its maximum
    is exact and no strategy is evaluated twice. Deterministic: the same candidates, seed and times
    give the same proposals, and torch's random state is left as it was.

    Args:
        candidates: strategies of one gbs, each feasible; duplicates count once.
        seed: of the Latin hypercube.

    Raises:
        ConfigError: there is no candidate, or botorch is missing.

    Source: method.md 4, `bo`
    """

    def __init__(self, candidates: Sequence[Strategy], *, seed: int = 0) -> None:
        require_botorch()
        self.candidates = list(dict.fromkeys(candidates))
        if not self.candidates:
            raise ConfigError("no feasible strategy to search; expected at least one")
        self._points = _unit_cube(self.candidates)
        self._first = _first_indices(self._points, seed)
        self._index = {s: i for i, s in enumerate(self.candidates)}
        self._times_s: dict[int, float] = {}
        self._stopped: str | None = None
        self._next: int | None = self._first[0]

    @property
    def times_s(self) -> dict[Strategy, float]:
        """Evaluated strategies with their T in seconds, in order of evaluation."""
        return {self.candidates[i]: seconds for i, seconds in self._times_s.items()}

    @property
    def num_first(self) -> int:
        """Evaluations before the first Gaussian process; fewer if there are fewer candidates."""
        return len(self._first)

    @property
    def stopped(self) -> str | None:
        """Why the search is over, in words; None while it is not."""
        return self._stopped

    @property
    def best(self) -> tuple[Strategy, float]:
        """The fastest evaluated strategy and its T in seconds; the earlier one on a tie."""
        winner = min(self._times_s, key=self._times_s.__getitem__)
        return self.candidates[winner], self._times_s[winner]

    def propose(self) -> Strategy | None:
        """Return the strategy to evaluate next; None if the search is over."""
        return None if self._next is None else self.candidates[self._next]

    def tell(self, strategy: Strategy, seconds: float) -> None:
        """Record T of a strategy and choose the next proposal.

        Args:
            strategy: one of the candidates, not evaluated yet.
            seconds: its T in seconds per iteration.

        Raises:
            ConfigError: no candidate, evaluated before, or T is not above 0.
        """
        index = self._index.get(strategy)
        if index is None or index in self._times_s:
            state = "no candidate" if index is None else "evaluated already"
            raise ConfigError(f"{strategy} is {state}; next: {self.propose()}")
        if not (np.isfinite(seconds) and seconds > 0):
            raise ConfigError(f"{strategy} takes {seconds} s; a time must be above 0")
        self._times_s[index] = seconds
        self._next = self._choose()

    def _choose(self) -> int | None:
        """Return the index of the next proposal, or note why there is none."""
        for index in self._first:
            if index not in self._times_s:
                return index
        rest = [i for i in range(len(self.candidates)) if i not in self._times_s]
        if not rest:
            self._stopped = "every strategy is evaluated"
            return None
        if len(self._times_s) >= self.num_first + MAX_UPDATES:
            self._stopped = f"{MAX_UPDATES} updates"
            return None
        known, times_s = list(self._times_s), np.array(list(self._times_s.values()))
        gain_s = expected_improvement_s(self._points[known], times_s, self._points[rest])
        winner = int(np.argmax(gain_s))
        if gain_s[winner] < STOP_FRACTION * times_s.min():
            self._stopped = f"expected improvement below {STOP_FRACTION:.0%} of the best"
            return None
        return rest[winner]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a finished search found."""

    strategy: Strategy
    """The fastest evaluated strategy."""
    time_s: float
    """Its T, seconds per iteration."""
    num_evaluations: int
    """Strategies evaluated."""
    stopped: str
    """Why the search ended."""


def minimise(candidates: Sequence[Strategy], time_model: TimeModel, *, seed: int = 0) -> Found:
    """Search to the end with a time model as the measurement.

    Args:
        candidates: strategies of one gbs; infeasible ones are left out.
        time_model: what T is, and which strategies are feasible.
        seed: of the Latin hypercube.

    Raises:
        ConfigError: no candidate is feasible, or botorch is missing.

    Source: method.md 4, `bo`
    """
    feasible = [s for s in candidates if time_model.why_not(s) is None]
    search = BayesianSearch(feasible, seed=seed)
    while strategy := search.propose():
        search.tell(strategy, time_model.time_s(strategy))
    strategy, time_s = search.best
    return Found(
        strategy=strategy,
        time_s=time_s,
        num_evaluations=len(search.times_s),
        stopped=search.stopped or "",
    )


def expected_improvement_s(points: Floats, times_s: Floats, others: Floats) -> Floats:
    """Return by how many seconds each other point is expected to beat the best T.

    A Gaussian process in float64 is fitted to -T, standardised to mean 0 and deviation 1.

    Args:
        points: evaluated points, shape [evaluated, axes], in the unit cube.
        times_s: their T in seconds, shape [evaluated].
        others: points to judge, shape [others, axes], in the unit cube.

    Returns:
        Expected improvements in seconds, shape [others], not negative; 0 where all T are equal.
    """
    import torch
    from botorch.acquisition.analytic import LogExpectedImprovement
    from botorch.exceptions import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    deviation = float(times_s.std(ddof=min(1, len(times_s) - 1)))
    if deviation <= np.finfo(float).eps * float(times_s.max()):
        return np.zeros(len(others))
    scores = torch.tensor((times_s.mean() - times_s) / deviation, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):  # a refitted process draws its first guess
        torch.manual_seed(0)
        process = SingleTaskGP(torch.tensor(points), scores[:, None], outcome_transform=None)
        with suppress(ModelFittingError):  # the priors' hyper-parameters then serve
            fit_gpytorch_mll(ExactMarginalLogLikelihood(process.likelihood, process))
        with torch.no_grad():
            log_gain = LogExpectedImprovement(process, best_f=scores.max())
            gains: Floats = log_gain(torch.tensor(others)[:, None]).exp().numpy()
    return gains * deviation


def _unit_cube(strategies: Sequence[Strategy]) -> Floats:
    """Return log2 of the axes, each moved and scaled to [0, 1], shape [strategies, axes]."""
    logs = np.log2(np.array([[getattr(s, axis) for axis in AXES] for s in strategies], float))
    span = np.ptp(logs, axis=0)
    scaled: Floats = (logs - logs.min(axis=0)) / np.where(span > 0, span, 1.0)
    return scaled


def _first_indices(points: Floats, seed: int) -> list[int]:
    """Return the candidates nearest to Latin-hypercube points, each candidate once.

    Args:
        points: the candidates in the unit cube, shape [candidates, axes].
        seed: of the hypercube.
    """
    rng = np.random.default_rng(seed)
    count, num_axes = min(NUM_FIRST, len(points)), points.shape[1]
    cells = rng.permuted(np.tile(np.arange(count), (num_axes, 1)), axis=1).T
    distances = ((points[None] - ((cells + rng.random(cells.shape)) / count)[:, None]) ** 2).sum(2)
    chosen: list[int] = []
    for row in distances:
        row[chosen] = np.inf
        chosen.append(int(np.argmin(row)))
    return chosen
