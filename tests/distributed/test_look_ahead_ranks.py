"""Looking ahead, and a policy's own engine, on real ranks: no trace is left, no decision is lost.

The fast tests hold LiveTrainer to the real engines on two ranks; the slow ones kill ranks of whole
runs, of a toy and of the real engines, and continue them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parallel_runs import small
from ranks import run_ranks

from cona.specs import EngineSpec, EvaluationSpec, LearningRateSpec, TierSpec
from cona.strategy import Strategy, Techniques

TOY = Path(__file__).with_name("toy_ranks.py")
CONA = Path(sys.executable).with_name("cona")
MODEL = "gpt3-1.3b-proxy"
DP = Strategy.parse("dp2-tp1-pp1-mbs2-gbs8")
FORKS = {
    "megatron": ["dp1-tp1-pp2-mbs2-gbs8", "dp1-tp2-pp1-mbs4-gbs16", "dp2-tp1-pp1-mbs4-gbs16"],
    "deepspeed": ["dp1-tp2-pp1-mbs2-gbs8", "dp2-tp1-pp1-mbs4-gbs16"],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return 400 short files of words."""
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0).choices([f"w{i}" for i in range(60)], k=80_000)
    for i in range(400):
        (folder / f"{i}.txt").write_text(" ".join(words[200 * i : 200 * (i + 1)]))
    return f"text:{folder}"


# --- the engines ----------------------------------------------------------------------------------


def _led(rank: int, kind: str, corpus: str) -> Any:
    """Be one of the ranks; rank 0 trains with forks and without, and returns what it saw."""
    import torch.distributed as dist

    from cona.engine import ranks

    group = dist.new_group(backend="gloo")
    if rank:
        ranks.serve(group)
        return None
    leader = ranks.Leader(group)
    answer = [_trained(leader, kind, corpus, forks) for forks in ([], FORKS[kind])]
    leader.stop()
    return answer


def _trained(leader: Any, kind: Any, corpus: str, forks: list[str]) -> dict[str, Any]:
    """Train three iterations, look ahead, train two more; the last fork is what comes then."""
    from cona.course import Course
    from cona.data import prepare
    from cona.gns import GradientNoiseScale
    from cona.live import LiveTrainer
    from cona.lr import LearningRate

    spec, tier = small("gpt", dropout=0.1, vocab_size=512), _tier(corpus)
    path = "live" if kind == "megatron" else "universal"
    options: dict[str, Any] = {
        "engine": EngineSpec(kind=kind, switch_path=path),
        "techniques": Techniques(zero_stage=int(kind == "deepspeed")),
    }
    trainer = LiveTrainer(
        lambda layout: leader.build(spec, layout, seed=0, **options),
        prepare(corpus, spec),
        tier,
        seed=0,
    )
    trainer.build(DP.layout)
    here = Course(lr=LearningRate(tier.learning_rate, spec), gns=GradientNoiseScale(0.999))
    seen, ahead = [], []
    for strategy in [DP] * 3 + [Strategy.parse(FORKS[kind][-1])] * 2:
        if here.iteration == 3:
            fork = [[(Strategy.parse(text), 2)] for text in forks]
            ahead = [trainer.look_ahead(here, stages).record for stages in fork]
        here.turn_to(strategy.gbs)
        step = trainer.train(here, strategy).record
        here.add(step, strategy.gbs)
        seen.append((step.loss_nats, step.grad_norm, step.tr_sigma))
    return {
        "steps": seen,
        "ahead": [(one.iteration, one.nats) for one in ahead],
        "end": trainer.evaluate(5, "probe").record.nats,
        "layout": str(trainer.layout),
        "snapshots": len(leader._rank._snapshots),
    }


def _tier(corpus: str) -> TierSpec:
    return TierSpec(
        name="tiny",
        description="for tests",
        models=("tiny",),
        policies=("cona",),
        evaluation=EvaluationSpec(interval_samples=256, num_samples=4, probe_samples=4),
        learning_rate=LearningRateSpec(decay_samples=1000),
        snapshot_interval_samples=64,
    )


@pytest.mark.parametrize("kind", FORKS)
def test_forks_in_other_layouts_leave_no_trace(kind: str, corpus: str) -> None:
    without, having = run_ranks(_led, 2, kind, corpus, timeout_s=400)[0]
    assert having["steps"] == without["steps"]  # to the last bit: weights, moments, dropout, data
    assert having["end"] == without["end"]
    assert having["layout"] == str(DP.layout)
    assert having["snapshots"] == 0
    assert [iteration for iteration, _ in having["ahead"]] == [5] * len(FORKS[kind])
    # The last fork goes where training then goes; the others are other ways.
    assert having["ahead"][-1][1] == having["end"]
    assert len({nats for _, nats in having["ahead"]}) == len(FORKS[kind])


# --- whole runs -----------------------------------------------------------------------------------


class Runs:
    """Runs of a policy on two ranks, whose files go to a folder.

    Args:
        folder: the results, and what the toy's ranks say that they do.
        corpus: the text.
        policy: the policy.
        is_real: take `cona` as it is, not the toy.
    """

    def __init__(self, folder: Path, corpus: str, policy: str, *, is_real: bool = False) -> None:
        self.folder, self.is_real = folder, is_real
        self.run = folder / "smoke" / MODEL / policy / "seed0"
        (folder / "signals").mkdir(parents=True)
        settings = {
            "cluster": "local-cpu@2",
            "snapshot_interval_samples": 64,
            "oracle.decisions": 4,
        }
        changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.words = ["run", "--clock", "measured", "--nproc", "2", "--model", MODEL]
        self.words += ["--tier", "smoke", "--policy", policy, *changes, "--data", corpus]
        self.words += ["--out", str(folder)]

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start the command."""
        program = CONA if self.is_real else TOY
        toy = {"TOY_SIGNALS": str(self.folder / "signals"), "TOY_SLEEP_S": "0.01"}
        return subprocess.Popen(
            [sys.executable, str(program), *self.words],
            env=os.environ | toy | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> None:
        """Run the command to its end."""
        process = self.start()
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert "finished" in output
        assert "Traceback" not in errors

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the complete lines of a file of the run."""
        path = self.run / name
        return list(map(json.loads, path.read_text().split("\n")[:-1])) if path.exists() else []

    def records(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return those of a kind."""
        return [r for r in self.lines(name) if r.get("kind", r.get("event")) == kind]

    def kill_when(self, kind: str, number: int) -> None:
        """Start the command, and kill a rank once so many lines of a kind are on record."""
        process = self.start()
        deadline = time.monotonic() + 300
        while len(self.records("measured.jsonl", kind)) < number:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(self._child(process.pid), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGKILL
        assert "was ended by SIGKILL" in errors

    @staticmethod
    def _child(pid: int) -> int:
        """Return the last rank that a launcher started."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return max(map(int, children))

    def course(self) -> list[Any]:
        """Return losses, forks and decisions, without times."""
        steps = [(r["iteration"], r["loss"]) for r in self.records("metrics.jsonl", "step")]
        forks = self.records("measured.jsonl", "probe")
        ahead = [(r["from"], r["stages"], r["nats"]) for r in forks]
        decided = self.records("metrics.jsonl", "decision")
        return [steps, ahead, [(d["iteration"], d["next"], d["details"]) for d in decided]]


def check_that_it_continues(whole: Runs, parts: Runs, kind: str, number: int) -> None:
    """Kill a run in the middle, continue it, and compare it with one that nothing disturbed."""
    whole.finish()
    parts.kill_when(kind, number)
    parts.finish()
    assert parts.records("events.jsonl", "work repeated")
    for ours, theirs in zip(parts.course(), whole.course(), strict=True):
        common = min(len(ours), len(theirs))
        assert ours[:common] == theirs[:common]
    assert len(parts.course()[0]) > 8


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 7])  # at the start, and after the first interval
def test_an_oracle_that_is_killed_decides_the_same(
    tmp_path: Path, corpus: str, number: int
) -> None:
    whole, parts = (Runs(tmp_path / name, corpus, "greedy-oracle") for name in ("whole", "parts"))
    check_that_it_continues(whole, parts, "probe", number)
    seconds = sum(r["seconds"] for r in parts.records("measured.jsonl", "probe"))
    result = json.loads((parts.run / "result.json").read_text())
    assert result["probe_s"] == pytest.approx(seconds)
    assert result["clock"]["engine"]["kind"] == "megatron"


@pytest.mark.slow
def test_so_it_is_with_the_real_engine(tmp_path: Path, corpus: str) -> None:
    whole, parts = (
        Runs(tmp_path / name, corpus, "greedy-oracle", is_real=True) for name in ("whole", "parts")
    )
    check_that_it_continues(whole, parts, "probe", 7)


@pytest.mark.slow
def test_a_policys_own_engine_is_continued(tmp_path: Path, corpus: str) -> None:
    """When it switches depends on wall time, so a run is compared with its own beginning."""
    run = Runs(tmp_path, corpus, "cona-paper-engine=deepspeed", is_real=True)
    run.kill_when("step", 14)
    before, decided = run.lines("measured.jsonl"), run.records("metrics.jsonl", "decision")
    run.finish()
    kept = max(i for i, line in enumerate(before) if line["kind"] == "checkpoint")
    assert run.lines("measured.jsonl")[: kept + 1] == before[: kept + 1]
    until = before[kept]["iteration"]
    assert [d for d in run.records("metrics.jsonl", "decision") if d["iteration"] < until] == [
        d for d in decided if d["iteration"] < until
    ]
    engine = {"kind": "deepspeed", "precision": "fp32", "switch_path": "universal"}
    assert json.loads((run.run / "result.json").read_text())["clock"]["engine"] == engine
    assert before[0]["engine"] == engine
