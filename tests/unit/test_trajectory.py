"""The trajectory tree: shared prefixes, forks, exact continuation, several writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from problems import tiny_model, tiny_tier
from toy_engine import ToyEngine

from cona.data import prepare
from cona.errors import RunError
from cona.lr import LearningRate
from cona.runlog import read_records
from cona.segments import Segment
from cona.strategy import Strategy
from cona.trainer import Trainer
from cona.trajectory import Trajectory


@pytest.fixture
def walk(tmp_path: Path, small_corpus: str):  # type: ignore[no-untyped-def]
    """Return a function that opens the tree of a folder with a new engine."""
    prepared = prepare(small_corpus, tiny_model())

    def open_tree(name: str = "tree", **changes: object) -> Trajectory:
        tier = tiny_tier(**changes)
        trainer = Trainer(ToyEngine, prepared, tier, seed=0)
        lr = LearningRate(tier.learning_rate, tiny_model())
        return Trajectory(Segment(tmp_path / name, recipe={"seed": 0}), trainer, lr, tier)

    return open_tree


def go(trajectory: Trajectory, *gbs: int) -> list[float | None]:
    return [trajectory.step(g).loss for g in gbs]


def test_training_lowers_the_loss_and_evaluation(walk) -> None:  # type: ignore[no-untyped-def]
    trajectory = walk()
    before = trajectory.evaluate().perplexity
    go(trajectory, *[8] * 30)
    after = trajectory.evaluate().perplexity
    assert before == pytest.approx(512)
    assert after is not None
    assert after < 0.5 * before


def test_a_walked_path_needs_no_engine(walk) -> None:  # type: ignore[no-untyped-def]
    first = walk()
    losses = go(first, *[8] * 10, *[16] * 5)
    ppl = first.evaluate().perplexity
    built = ToyEngine.num_built
    again = walk()
    assert go(again, *[8] * 10, *[16] * 5) == losses
    assert again.evaluate().perplexity == ppl
    assert again.gns.estimate() == first.gns.estimate()
    assert ToyEngine.num_built == built


def test_continuing_equals_never_stopping(walk) -> None:  # type: ignore[no-untyped-def]
    whole = go(walk("a"), *[8] * 10, *[16] * 10, *[8] * 5)
    go(walk("b"), *[8] * 10, *[16] * 3)
    assert go(walk("b"), *[8] * 10, *[16] * 10, *[8] * 5) == whole


@pytest.mark.fault("damaged snapshot")
def test_a_kill_without_snapshot_repeats_recorded_steps(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = go(walk("a"), *[8] * 20)
    go(walk("b"), *[8] * 15)
    snapshots = list((tmp_path / "b").glob("*/snapshots/*.pt"))
    assert snapshots  # every 64 samples
    for path in snapshots:
        path.write_bytes(path.read_bytes()[:10])  # and every one of them is damaged
    assert go(walk("b"), *[8] * 20) == whole


def test_only_the_latest_snapshots_are_kept_if_the_tier_says_so(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = go(walk("a"), *[8] * 40)
    go(walk("b", snapshots_kept=2), *[8] * 34)
    # Every 64 samples is every eighth iteration: 8, 16, 24 and 32 were written.
    assert sorted(int(p.stem) for p in (tmp_path / "b").glob("*/snapshots/*.pt")) == [24, 32]
    assert go(walk("b", snapshots_kept=2), *[8] * 40) == whole


def test_prefixes_are_shared_and_branches_are_not(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    a, b = walk(), walk()
    go(a, *[8] * 12)
    go(b, *[8] * 6, *[16] * 4)
    folders = {p.name for p in (tmp_path / "tree").iterdir()}
    assert len(folders) == 3  # the root, gbs 8, and gbs 16 after six iterations of 8
    assert a.segments[:2] == b.segments[:2]
    shared = read_records(tmp_path / "tree" / a.segments[1] / "steps.jsonl")
    assert [r["iteration"] for r in shared] == list(range(1, 13))


def test_samples_are_consumed_in_one_order_whatever_the_batch(walk) -> None:  # type: ignore[no-untyped-def]
    a, b = walk("a"), walk("b")
    go(a, *[8] * 4)
    go(b, 32)
    assert a.position.samples == b.position.samples == 32


def test_probing_moves_nothing_and_equals_going_there(walk) -> None:  # type: ignore[no-untyped-def]
    trajectory, reference = walk("a"), walk("b")
    go(trajectory, *[8] * 5)
    go(reference, *[8] * 5)
    strategies = {g: Strategy(dp=4, tp=1, pp=1, mbs=1, gbs=g) for g in (8, 16, 32)}
    seen = {g: trajectory.probe([(s, 6)]) for g, s in strategies.items()}
    assert trajectory.position.iteration == 5
    here = [(strategies[32], 0)]
    assert trajectory.probe(here) == reference.probe(here)
    assert go(trajectory, *[16] * 8) == go(reference, *[16] * 8)
    other = walk("c")
    go(other, *[8] * 5, *[32] * 6)
    evaluation = other.evaluate("probe")
    assert evaluation.nats is not None
    assert evaluation.nats / evaluation.num_tokens == seen[32]
    assert len(set(seen.values())) == 3


def test_two_walkers_extend_one_segment(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    a, b = walk(), walk()
    losses_a, losses_b = [], []
    for i in range(12):
        losses_a += go(a, 8)
        if i % 2:
            losses_b += go(b, 8, 8)
    assert losses_a == losses_b
    records = read_records(tmp_path / "tree" / a.segments[1] / "steps.jsonl")
    assert [r["iteration"] for r in records] == list(range(1, 13))


def test_records_of_other_software_are_refused(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trajectory = walk()
    go(trajectory, *[8] * 5)
    path = tmp_path / "tree" / trajectory.segments[1] / "steps.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"loss_nats":', '"loss_nats":1')
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match="iteration 3 gave a loss"):
        go(walk(), *[8] * 6)


def test_a_gap_in_the_records_is_refused(walk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trajectory = walk()
    go(trajectory, *[8] * 5)
    path = tmp_path / "tree" / trajectory.segments[1] / "steps.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:1] + lines[2:]) + "\n")
    with pytest.raises(RunError, match="iteration 3 follows 1"):
        walk().step(8)
