"""The seeds that most policies have: a centre over other seeds would compare what is not alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cona.analysis.groups import by_model, by_policy, unique
from cona.analysis.load import Run


@dataclass(frozen=True, kw_only=True)
class CommonSeeds:
    """Seeds, and the policies that have all of them."""

    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    left_out: tuple[str, ...]
    """Policies that lack one of the seeds at some model."""

    def has(self, run: Run) -> bool:
        """Return whether a run counts."""
        return run.seed in self.seeds and run.policy in self.policies

    def sentence(self) -> str:
        """Return which seeds count and which policies are left out."""
        seeds, missing = ", ".join(map(str, self.seeds)), ", ".join(f"`{p}`" for p in self.left_out)
        return f"Seeds: {seeds}, those of most policies." + (
            f" Left out, for they lack some: {missing}." if missing else ""
        )


def common_seeds(runs: Sequence[Run]) -> CommonSeeds:
    """Return the set of seeds that most policies have.

    Args:
        runs: of any number of models, at least one.
    """
    sets = [
        tuple(sorted({run.seed for run in seeds}))
        for group in by_model(runs).values()
        for seeds in by_policy(group).values()
    ]
    seeds = Counter(sets).most_common(1)[0][0]
    wanted = {(model, seed) for model in by_model(runs) for seed in seeds}
    complete = [
        policy
        for policy, group in by_policy(runs).items()
        if wanted <= {(run.model, run.seed) for run in group}
    ]
    return CommonSeeds(
        seeds=seeds,
        policies=tuple(complete),
        left_out=tuple(p for p in unique(run.policy for run in runs) if p not in complete),
    )
