"""Plays randomised faults over short runs, and says what came of it: `make soak NUM=100 SEED=0`.

A run is disturbed several times and then left to end; what it ends with is compared with a run that
nothing happened to. Ends with status 1 if an evaluation was lost, a sample trained twice, or
anything is different.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("faults", "unit", "distributed")]

from soak_faults import BOTH, ON_RANKS, WrongEndError  # noqa: E402
from soak_runs import Measured, Modelled, SoakRun  # noqa: E402

SHARE_MEASURED = 0.3
"""Of the faults, those on real ranks, which take longer."""
FAULTS_PER_RUN = 5
RARE = {"SIGKILL of torchrun": 0.5}
"""How often instead of once: this one takes the seconds of importing everything."""


@dataclass
class Tally:
    """What came of the faults of each name."""

    played: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    duplicated: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing came of any fault."""
        return not (self.lost.total() or self.duplicated.total() or self.different.total())

    def note(self, fault: str, different: list[str]) -> None:
        """Count differences that showed after a fault."""
        self.different[fault] += len(different)
        self.notes += [f"{fault}: {text}" for text in different]

    def table(self) -> str:
        """Return the table for people."""
        head = ("fault", "played", "lost evaluations", "duplicated samples", "differences")
        counts = (self.played, self.lost, self.duplicated, self.different)
        rows = [(name, *(c[name] for c in counts)) for name in sorted(self.played)]
        rows.append(("all", *(c.total() for c in counts)))
        width = max(len(str(row[0])) for row in rows)
        lines = [
            f"{name:<{width}}"
            + "".join(f"  {n:>{len(h)}}" for h, n in zip(head[1:], numbers, strict=True))
            for name, *numbers in [head, *rows]
        ]
        return "\n".join([*lines, *self.notes])


class Soak:
    """Disturbs runs below a folder.

    Args:
        folder: an empty one.
        seed: of which faults, when.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.tally = folder, random.Random(seed), Tally()
        self._whole: dict[tuple[type[SoakRun], str], SoakRun] = {}
        self._num_runs = 0

    def play(self, num_faults: int) -> Tally:
        """Play so many faults, and end every run that was disturbed."""
        num_measured = round(SHARE_MEASURED * num_faults)
        for kind, num in ((Modelled, num_faults - num_measured), (Measured, num_measured)):
            left = num
            while left > 0:
                left -= self._disturb(kind, min(left, FAULTS_PER_RUN))
        return self.tally

    def _disturb(self, kind: type[SoakRun], num_faults: int) -> int:
        """Disturb one run and let it end; return how many faults were played."""
        policy = self.rng.choice(kind.policies)  # type: ignore[attr-defined]
        whole, run = self._left_alone(kind, policy), self._new(kind, policy)
        seen: list[tuple[str, dict[int, float]]] = []
        for _ in range(3 * num_faults):
            if run.is_finished() or len(seen) == num_faults:
                break
            name, before = self._draw(kind), run.evaluations()
            try:
                is_played = {**BOTH, **ON_RANKS}[name](run, self.rng)
            except WrongEndError as error:
                is_played = True
                self.tally.note(name, [str(error)])
            if is_played:
                seen.append((name, before))
                self.tally.played[name] += 1
                self.tally.note(name, run.differences(whole))  # type: ignore[attr-defined]
                say(f"{self.tally.played.total()}: {kind.clock} {policy}: {name}")
        self._end(run, whole, seen)
        return len(seen)

    def _end(self, run: SoakRun, whole: SoakRun, seen: list[tuple[str, dict[int, float]]]) -> None:
        codes, said = run.start().ends()
        last = seen[-1][0] if seen else "no fault"
        if any(codes) or "Traceback" in said:
            self.tally.note(last, [f"exit statuses {codes}: {said}"])
        self.tally.note(last, run.differences(whole))  # type: ignore[attr-defined]
        self.tally.duplicated[last] += run.num_duplicated()
        now = run.evaluations()
        for name, before in seen:
            self.tally.lost[name] += sum(now.get(i) != nats for i, nats in before.items())

    def _draw(self, kind: type[SoakRun]) -> str:
        faults = [*BOTH, *(ON_RANKS if kind is Measured else ())]
        weights = [RARE.get(name, 1.0) for name in faults]
        return self.rng.choices(faults, weights)[0]

    def _left_alone(self, kind: type[SoakRun], policy: str) -> SoakRun:
        if (kind, policy) not in self._whole:
            run = self._new(kind, policy)
            codes, said = run.start().ends()
            if any(codes):
                raise SystemExit(f"a run that nothing disturbs ended with {codes}: {said}")
            self._whole[kind, policy] = run
        return self._whole[kind, policy]

    def _new(self, kind: type[SoakRun], policy: str) -> SoakRun:
        self._num_runs += 1
        return kind(self.folder / str(self._num_runs), policy)


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Play the faults that the command line asks for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=100, help="faults")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cona-soak-") as folder:
        tally = Soak(Path(folder), options.seed).play(options.num)
    seconds = time.monotonic() - began_s
    sys.stdout.write(f"{tally.table()}\n{tally.played.total()} faults in {seconds:.0f} s\n")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
