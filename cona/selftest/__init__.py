"""Whether the parallel engine, on the hardware that is present, is the single-process engine.

Every layout of every number of ranks up to the one asked for trains a small model of each family
for a few iterations, and one run goes through all layouts by live switches. All must equal the run
of the engine for one process, which shares the model's modules with the parallel engine, but none
of its schedules, reductions, statistics and shards. Source: method.md 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cona.engine.base import StepStats
from cona.errors import ConfigError, RunError
from cona.selftest.cases import FAMILIES, Case, cases_of, world_sizes
from cona.selftest.launch import Ranks
from cona.selftest.verdict import QUANTITIES, TOLERANCES, Verdict, judge

__all__ = ["ENGINE", "FAMILIES", "QUANTITIES", "TOLERANCES", "Case", "SelfTest", "Verdict"]

ENGINE = "cona.engine.parallel:ParallelEngine"
"""The engine that is tested."""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Compares runs on real ranks with the run of a single process.

    Raises:
        ConfigError: there are not as many GPUs as ranks, or no ranks.
    """

    nproc: int
    """Ranks of the largest launch; 1: the parallel engine on one rank."""
    families: tuple[str, ...] = FAMILIES
    """Model families."""
    precision: str = "fp32"
    """fp32, or another precision that is tested after it."""
    num_gpus: int = 0
    """CUDA devices of this machine; 0: ranks run on the CPU."""
    engine: str = ENGINE
    """``module:name`` of the class, called like ``cona.engine.parallel.ParallelEngine``."""

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ConfigError(f"nproc {self.nproc}: must be at least 1")
        if 0 < self.num_gpus < self.nproc:
            raise ConfigError(
                f"nproc {self.nproc}: every rank needs a GPU of its own, and this machine has "
                f"{self.num_gpus}; nearest: {self.num_gpus}"
            )

    def launches(self, family: str) -> list[list[Case]]:
        """Return the cases of a family, one list for each number of ranks."""
        precisions = tuple(dict.fromkeys(("fp32", self.precision)))
        sizes = world_sizes(self.nproc)
        return [cases_of(family, num_ranks, self.nproc, precisions) for num_ranks in sizes]

    @property
    def num_cases(self) -> int:
        """Verdicts that ``run`` yields."""
        return sum(len(launch) for family in self.families for launch in self.launches(family))

    def run(self, logs: Path) -> Iterator[Verdict]:
        """Yield a verdict for every case, in order.

        Args:
            logs: an existing folder for what the ranks print.
        """
        ranks = Ranks(on_gpus=self.num_gpus > 0, logs=logs)
        for family in self.families:
            name = f"{family}-single"
            try:
                (reference,) = ranks.run(f"{WORK}:single_process", 1, family, self.nproc, name=name)
            except RunError as error:
                note = f"the single process failed: {error}"
                for launch in self.launches(family):
                    yield from (Verdict(case=case, note=note) for case in launch)
                continue
            for launch in self.launches(family):
                yield from self._verdicts(ranks, launch, reference)

    def _verdicts(
        self, ranks: Ranks, launch: Sequence[Case], reference: Sequence[StepStats]
    ) -> Iterator[Verdict]:
        """Run one launch; after a case that fails to end, those behind it do not run."""
        num_ranks = launch[0].num_ranks
        name = f"{launch[0].family}-{num_ranks}"
        done = 0
        try:
            work = (f"{WORK}:on_ranks", num_ranks, self.engine, launch, self.nproc)
            for stats in ranks.run(*work, name=name):
                yield judge(launch[done], stats, reference)
                done += 1
        except RunError as error:
            # Behind the last case it is only how the ranks took their leave.
            yield from (Verdict(case=case, note=str(error)) for case in launch[done : done + 1])
            done += 1
        for case in launch[done:]:
            yield Verdict(case=case, note="did not run: the case before it failed to end")


WORK = "cona.selftest.work"
"""Module of what the ranks do; it imports torch and megatron, this one does not."""
