"""The faults of a soak: each starts a run or touches its files, and says whether it was played."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from processes import Disk
from soak_runs import Measured, SoakRun

from cona.owner import Owner

FaultT = Callable[[SoakRun, random.Random], bool]
"""Returns whether the fault was played: a run may be over before it."""


class WrongEndError(Exception):
    """A process ended otherwise than a user may expect."""


def _some_steps_later(run: SoakRun, rng: random.Random) -> int:
    return len(run.lines("step")) + rng.randint(1, 8)


# --- signals --------------------------------------------------------------------------------------


def kill_run(run: SoakRun, rng: random.Random, rank: int = 0) -> bool:
    """SIGKILL of a process of the run, anywhere in an iteration."""
    attempt = run.start()
    if not run.wait(attempt, _some_steps_later(run, rng)):
        attempt.ends()
        return False
    time.sleep(rng.random() / 20)
    attempt.children[rank].process.kill()
    codes, said = attempt.ends()
    if "Traceback" in said:
        raise WrongEndError(said)
    return codes[rank] == -signal.SIGKILL


def kill_rank_0(run: SoakRun, rng: random.Random) -> bool:
    return kill_run(run, rng, rank=0)


def kill_rank_1(run: SoakRun, rng: random.Random) -> bool:
    return kill_run(run, rng, rank=1)


def kill_at_start(run: SoakRun, rng: random.Random) -> bool:
    """SIGKILL while the run starts or repeats what is recorded."""
    attempt = run.start()
    time.sleep(rng.random() * 1.5)
    for child in attempt.children:  # a rank that waits for the first meeting waits for minutes
        child.process.kill()
    codes, _ = attempt.ends()
    return codes[0] == -signal.SIGKILL


def _signalled(number: signal.Signals) -> FaultT:
    def play(run: SoakRun, rng: random.Random) -> bool:
        attempt = run.start()
        if not run.wait(attempt, _some_steps_later(run, rng)):
            attempt.ends()
            return False
        os.kill(attempt.children[0].process.pid or 0, number)
        codes, said = attempt.ends()
        if codes[0] == 0:
            return False  # it was over
        if codes[0] != 128 + number or "the state is saved" not in said or "Traceback" in said:
            raise WrongEndError(f"exit statuses {codes}: {said}")
        return True

    return play


terminate = _signalled(signal.SIGTERM)
time_limit = _signalled(signal.SIGUSR1)


def kill_launcher(run: SoakRun, rng: random.Random) -> bool:
    """SIGKILL of torchrun's agent; its ranks save and end."""
    assert isinstance(run, Measured)
    process, wanted = run.launch(), _some_steps_later(run, rng)
    while len(run.lines("step")) < wanted and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    is_killed = process.wait() == -signal.SIGKILL
    deadline_s = time.monotonic() + 120
    while run.launched_ranks():
        if time.monotonic() > deadline_s:
            raise WrongEndError(f"ranks {run.launched_ranks()} outlive their launcher")
        time.sleep(0.05)
    return is_killed


# --- disks ----------------------------------------------------------------------------------------


def _on_disk(kind: str, code: int, sentence: str) -> FaultT:
    def play(run: SoakRun, rng: random.Random) -> bool:
        rank = rng.randrange(run.num_ranks)  # others than the first write checkpoints only
        disk = Disk(kind=kind, at=rng.randint(1, 20 if rank else 250), folder=run.results)
        codes, said = run.start(disk, rank).ends()
        if codes[0] == 0:
            return False  # the run was over before
        ended = codes[rank if kind == "killed" else 0]
        if ended != code or sentence not in said or "Traceback" in said:
            raise WrongEndError(f"exit statuses {codes}: {said}")
        return True

    return play


kill_in_write = _on_disk("killed", -signal.SIGKILL, "")
full_disk = _on_disk("full", 1, "no space left for ")
read_only_disk = _on_disk("read-only", 1, "Read-only file system")
broken_disk = _on_disk("broken", 1, "Input/output error")


def slow_disk(run: SoakRun, rng: random.Random) -> bool:
    """A disk that takes long for every flush, and then SIGKILL."""
    attempt = run.start(Disk(kind="slow", folder=run.results))
    if not run.wait(attempt, _some_steps_later(run, rng)):
        attempt.ends()
        return False
    attempt.children[0].process.kill()
    return attempt.ends()[0][0] == -signal.SIGKILL


# --- files ----------------------------------------------------------------------------------------


def _latest_state(run: SoakRun, rng: random.Random) -> Path | None:
    """Return a file of the latest snapshot or checkpoint, which the next start needs."""
    states = [*run.results.rglob("*.pt"), *run.folder.glob("checkpoints/*/__*")]
    if not states:
        return None
    newest = max(path.stat().st_mtime_ns for path in states)
    return rng.choice([p for p in states if p.stat().st_mtime_ns > newest - 10**8])


def truncated_state(run: SoakRun, rng: random.Random) -> bool:
    if (path := _latest_state(run, rng)) is None:
        return False
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return True


def flipped_state(run: SoakRun, rng: random.Random) -> bool:
    if (path := _latest_state(run, rng)) is None:
        return False
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return True


def torn_line(run: SoakRun, rng: random.Random) -> bool:
    """The last line of a log is only partly there."""
    names = (run.log, "events.jsonl", "steps.jsonl", "evals.jsonl")
    logs = [path for name in names for path in run.results.rglob(name) if path.stat().st_size]
    if not logs:
        return False
    path = rng.choice(logs)
    content = path.read_bytes()
    last = content.splitlines(keepends=True)[-1]
    path.write_bytes(content[: -rng.randint(1, len(last))])
    return True


def half_result(run: SoakRun, rng: random.Random) -> bool:
    run.folder.mkdir(parents=True, exist_ok=True)
    name = rng.choice(["result.json", ".result.json.0123abcd.99", "run.json"])
    if name == "run.json" and (run.folder / run.log).exists():
        return False  # whose run that is must be known: another test
    (run.folder / name).write_text('{"schema": 1, "status": "finis')
    return True


def stale_lock(run: SoakRun, rng: random.Random) -> bool:
    """Locks of a process that is gone, whose number another one has by now."""
    gone = replace(Owner.this_process(), started_s=rng.random()).to_json()
    folders = [path.parent for path in run.results.rglob(".lock.*")]
    for folder in folders:
        (folder / f".lock.{rng.randint(10**6, 10**9)}").write_text(gone)
    return bool(folders)


BOTH: dict[str, FaultT] = {
    "SIGKILL of a run": kill_run,
    "SIGKILL at the start": kill_at_start,
    "SIGKILL in the middle of a write": kill_in_write,
    "preemption (SIGTERM)": terminate,
    "time limit (SIGUSR1)": time_limit,
    "disk full": full_disk,
    "read-only folder": read_only_disk,
    "disk that fails": broken_disk,
    "slow file system": slow_disk,
    "truncated state": truncated_state,
    "flipped bit in a state": flipped_state,
    "torn line": torn_line,
    "half-written result": half_result,
    "stale lock": stale_lock,
}
ON_RANKS: dict[str, FaultT] = {
    "SIGKILL of rank 0": kill_rank_0,
    "SIGKILL of rank 1": kill_rank_1,
    "SIGKILL of torchrun": kill_launcher,
}
