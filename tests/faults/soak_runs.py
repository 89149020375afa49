"""Short runs that a soak disturbs, on both clocks, and how it sees whether anything came of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from processes import Child, Disk, be_cona, start
from toy_cona import files_of

from cona.errors import RunError
from cona.runlog import read_json

MODEL = "gpt3-1.3b-proxy"
PATIENCE_S = 300.0
NUM_RANKS = 2
SWITCH_AT, SWITCH_TO = 9, "dp1-tp1-pp2-mbs4-gbs8"
LAUNCHED = Path(__file__).parents[1] / "distributed" / "toy_ranks.py"
COMMAND = ("run", "--model", MODEL, "--tier", "smoke")

Record = dict[str, Any]


def records(path: Path) -> list[Record]:
    """Return the complete lines of a file, if it is there."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


@dataclass
class Attempt:
    """The processes of one start of a run."""

    children: list[Child]

    def runs(self) -> bool:
        """Return whether all of them are there."""
        return all(child.process.is_alive() for child in self.children)

    def ends(self) -> tuple[list[int], str]:
        """Wait for the end of all; return their exit statuses and what they said."""
        ended = [child.ends(PATIENCE_S) for child in self.children]
        return [code for code, _ in ended], "".join(said for _, said in ended)


@dataclass
class SoakRun:
    """A run in a folder of its own, which the same command starts and continues."""

    results: Path
    policy: str
    clock: ClassVar[str]
    num_ranks: ClassVar[int] = 1
    log: ClassVar[str]
    settings: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        self.results.mkdir(parents=True)

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.results / "smoke" / MODEL / self.policy / "seed0"

    @property
    def arguments(self) -> list[str]:
        """The command, without its first word."""
        changes = [word for k, v in self.settings.items() for word in ("--set", f"{k}={v}")]
        return [*COMMAND, "--policy", self.policy, *changes, "--out", str(self.results)]

    def lines(self, kind: str) -> list[Record]:
        """Return what stands in the run's own log."""
        return [r for r in records(self.folder / self.log) if r["kind"] == kind]

    def evaluations(self) -> dict[int, float]:
        """Return the finished evaluations on the log: nats by iteration."""
        return {line["iteration"]: line["nats"] for line in self.lines("eval")}

    def is_finished(self) -> bool:
        """Return whether the result is there."""
        try:
            return bool(read_json(self.folder / "result.json"))
        except RunError:  # missing, or the half of one
            return False

    def wait(self, attempt: Attempt, num_steps: int) -> bool:
        """Wait for so many iterations on the log; return whether the run got there."""
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.lines("step")) < num_steps:
            if not attempt.runs() or time.monotonic() > deadline_s:
                return False
            time.sleep(0.005)
        return attempt.runs()

    def num_duplicated(self) -> int:
        """Return how many samples stand on record twice."""
        return _duplicates(self.lines("step"))

    def start(self, disk: Disk | None = None, rank: int = 0) -> Attempt:
        """Start it, or continue it; one of its ranks may have another disk."""
        raise TypeError(f"{type(self).__name__} is not a kind of run")


def _duplicates(steps: list[Record]) -> int:
    duplicated, consumed = 0, 0
    for step in steps:
        duplicated += max(0, consumed - step["samples"] + step.get("gbs", 8))
        consumed = max(consumed, step["samples"])
    return duplicated


# --- modelled -------------------------------------------------------------------------------------


class Modelled(SoakRun):
    """On the modelled clock, in one process: everything is the same to the byte."""

    clock = "modelled"
    log = "metrics.jsonl"
    settings: ClassVar = {"budget.iterations": 36, "snapshot_interval_samples": 64}
    policies = ("cona", "rampup", "fixed-best-gbs8", "greedy-oracle")

    def start(self, disk: Disk | None = None, rank: int = 0) -> Attempt:
        output = self.results.with_name(f"{self.results.name}.txt")
        return Attempt([start(output, be_cona, *self.arguments, disk=disk)])

    def num_duplicated(self) -> int:
        segments = [records(path) for path in self.results.rglob("steps.jsonl")]
        iterations = [[step["iteration"] for step in steps] for steps in segments]
        twice = sum(len(seen) - len(set(seen)) for seen in iterations)
        return super().num_duplicated() + twice

    def differences(self, whole: SoakRun) -> list[str]:
        """Return the files that are not those of a run that was left alone."""
        if not self.is_finished():
            mine = b"\n".join(_complete(self.folder / self.log))
            theirs = (whole.folder / self.log).read_bytes()
            return [] if theirs.startswith(mine) else [self.log]
        mine, theirs = files_of(self.results), files_of(whole.results)
        return sorted(name for name in mine.keys() | theirs if mine.get(name) != theirs.get(name))


def _complete(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


# --- measured -------------------------------------------------------------------------------------


@dataclass
class Measured(SoakRun):
    """On real ranks: losses and evaluations are the same, times are not."""

    clock = "measured"
    num_ranks = NUM_RANKS
    log = "measured.jsonl"
    settings: ClassVar = {
        "cluster": f"local-cpu@{NUM_RANKS}",
        "budget.seconds": 4,
        "snapshot_interval_samples": 32,
    }
    policies = ("fixed-best-gbs8",)
    signals: Path = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.signals = self.results / "signals"
        self.signals.mkdir()

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--clock", "measured"]

    def start(self, disk: Disk | None = None, rank: int = 0) -> Attempt:
        """Start the ranks without a launcher, as srun does."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shutil.rmtree(self.results / "faults", ignore_errors=True)
        (self.results / "faults").mkdir()
        world = {"WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        world |= {"GLOO_SOCKET_IFNAME": "lo", "CONA_FAULTS": str(self.results / "faults")}
        children = []
        for number in range(NUM_RANKS):
            output = self.results.with_name(f"{self.results.name}.{number}.txt")
            mine = {"RANK": str(number), "LOCAL_RANK": str(number)}
            disks = {rank: disk}
            child = start(
                output, switching_cona, *self.arguments, env=world | mine, disk=disks.get(number)
            )
            children.append(child)
        return Attempt(children)

    def launch(self) -> subprocess.Popen[str]:
        """Start the same command with its own launcher, torchrun's agent."""
        toy = {"TOY_ENGINE": "megatron", "TOY_SWITCH": f"{SWITCH_AT}:{SWITCH_TO}"}
        toy |= {"TOY_SIGNALS": str(self.signals), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(LAUNCHED), *self.arguments, "--nproc", str(NUM_RANKS)]
        return subprocess.Popen(
            command, env=os.environ | toy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def launched_ranks(self) -> list[int]:
        """Return the process ids of ranks that were launched and are still there."""
        pids = [int(path.suffix[1:]) for path in self.signals.iterdir()]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def differences(self, whole: SoakRun) -> list[str]:
        """Return in what the run is not as one that was left alone, as far as both go."""
        mine, theirs = self.evaluations(), whole.evaluations()
        common = mine.keys() & theirs.keys()
        found = [f"evaluation at {i}" for i in sorted(common) if mine[i] != theirs[i]]
        pairs = zip(self.lines("step"), whole.lines("step"), strict=False)
        found += [f"loss at {a['iteration']}" for a, b in pairs if _course(a) != _course(b)]
        switches = [(line["iteration"], line["to"]) for line in self.lines("switch")]
        wanted = [(SWITCH_AT, SWITCH_TO)] if len(self.lines("step")) > SWITCH_AT else []
        if self.is_finished() and switches != wanted:
            found.append(f"switches {switches}")
        return found


def _course(step: Record) -> tuple[Any, ...]:
    return step["iteration"], step["samples"], step["strategy"], step["loss_nats"]


def switching_cona(*arguments: str) -> None:
    """Be the `cona` command; `fixed-best` changes its layout once."""
    from toy_ranks import switch_once

    from cona.strategy import Strategy

    switch_once(SWITCH_AT, Strategy.parse(SWITCH_TO))
    be_cona(*arguments)
