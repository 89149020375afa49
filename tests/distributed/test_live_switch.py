"""A run that changes its layout on the way is the run that did not."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from parallel_runs import LR, layout, losses, single_process, small, text_batches
from ranks import run_ranks

from cona.engine.base import Batch
from cona.specs import ModelSpec
from cona.strategy import Layout, Strategy

WAY = (
    "dp2-tp1-pp2-mbs2-gbs8",
    "dp1-tp2-pp2-mbs2-gbs8",
    "dp4-tp1-pp1-mbs2-gbs16",
    "dp1-tp1-pp4-mbs2-gbs16",
    "dp1-tp4-pp1-mbs2-gbs4",
    "dp2-tp2-pp1-mbs2-gbs8",
    "dp2-tp1-pp2-mbs2-gbs8",
)
"""Each layout of four ranks, for three iterations each; the batch changes with some of them."""

MBS = 2


def four_ranks(family: str, **changes: Any) -> ModelSpec:
    """Return a model that every layout of four ranks divides; its vocabulary is padded to 512."""
    return small(family, num_layers=4, num_kv_heads=4, tp_max=4, **changes)


def batches_of(spec: ModelSpec, strategies: Sequence[Strategy]) -> list[Batch]:
    return text_batches(spec, [strategy.gbs for strategy in strategies])


def _follow(rank: int, spec: ModelSpec, strategies: list[Strategy]) -> tuple[list[Any], list[Any]]:
    """Train one iteration by each strategy; return what each saw, and what each switch cost."""
    from cona.engine.parallel import ParallelEngine

    engine = ParallelEngine(spec, strategies[0].layout, 0)
    steps, switches = [], []
    for strategy, batch in zip(strategies, batches_of(spec, strategies), strict=True):
        if strategy.layout != engine.layout:
            switches.append(engine.switch(strategy.layout))
        steps.append(engine.train_step(batch, exec_mbs=strategy.mbs, lr=LR))
    return steps, switches


@pytest.mark.parametrize(
    "family", ["gpt", *(pytest.param(f, marks=pytest.mark.slow) for f in ("bert", "llama"))]
)
def test_losses_are_those_of_one_rank_through_every_layout(family):
    spec = four_ranks(family)
    strategies = [Strategy.parse(text) for text in WAY for _ in range(3)][:20]
    assert len({strategy.layout for strategy in strategies}) == 6
    batches = batches_of(spec, strategies)
    (expected,) = run_ranks(single_process, 1, spec, batches, MBS)
    ranks = run_ranks(_follow, 4, spec, strategies)
    for steps, switches in ranks:
        assert losses(steps) == pytest.approx(losses(expected.steps), rel=1e-5)
        norms = [one.grad_norm for one in expected.steps]
        assert [one.grad_norm for one in steps] == pytest.approx(norms, rel=1e-4)
        assert len(switches) == 6
        assert all(s.needed_bytes <= s.moved_bytes <= 1.1 * s.needed_bytes for s in switches)
    # Training did something: the comparison is not one of standing still.
    assert losses(expected.steps)[-1] < losses(expected.steps)[0] - 0.5


# --- the state ----------------------------------------------------------------------------------


def _round_trips(rank: int, spec: ModelSpec, layouts: list[Layout], batch: Batch) -> list[str]:
    """Go from every layout to every other and back; return the trips that changed anything."""
    from cona.engine.parallel import ParallelEngine
    from cona.engine.stage import Numerics

    engine = ParallelEngine(spec, layouts[0], 0, Numerics(precision="fp16"))
    for _ in range(2):
        engine.train_step(batch, exec_mbs=1, lr=LR)
    unusual = engine.snapshot()
    unusual.scalars["scaler"]["scale"].fill_(2.0**9)
    engine.restore(unusual)
    broken = []
    for there in layouts:
        engine.switch(there)
        for back in layouts:
            before = engine.snapshot()
            engine.switch(back)
            state = (engine.snapshot().scalars["num_updates"], engine.loss_scale)
            engine.switch(there)
            after = engine.snapshot()
            same = all(after.vectors[k].equal(v) for k, v in before.vectors.items())
            moved = all(v.count_nonzero() > 0 for v in after.vectors.values())
            stream = after.scalars["random"].equal(before.scalars["random"])
            if not (same and moved and stream and state == (2, 2.0**9)):
                broken.append(f"{there} -> {back}")
    return broken


@pytest.mark.parametrize("family", ["gpt", "bert", "llama"])
def test_weights_moments_updates_loss_scale_and_random_stream_come_back_bit_for_bit(family):
    spec = small(family, tp_max=2, dropout=0.1)
    layouts = [layout(degrees) for degrees in ("dp2", "tp2", "pp2")]
    assert run_ranks(_round_trips, 2, spec, layouts, text_batches(spec, [4])[0]) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert", "llama"])
def test_every_pair_of_layouts_of_four_ranks(family):
    spec = four_ranks(family, dropout=0.1)
    layouts = sorted({Strategy.parse(text).layout for text in WAY})
    batch = text_batches(spec, [4])[0]
    assert run_ranks(_round_trips, 4, spec, layouts, batch, timeout_s=600) == [[]] * 4


def _forked(rank: int, spec: ModelSpec, batch: Batch) -> list[list[float]]:
    """Train on from a snapshot, twice, the second time after a detour by another layout."""
    from cona.engine.parallel import ParallelEngine

    engine = ParallelEngine(spec, layout("dp2"), 0)
    engine.train_step(batch, exec_mbs=2, lr=LR)
    fork, seen = engine.snapshot(), []
    for _ in range(2):
        seen.append(losses([engine.train_step(batch, exec_mbs=2, lr=LR) for _ in range(2)]))
        engine.switch(layout("pp2"))
        engine.train_step(batch, exec_mbs=2, lr=LR)
        engine.restore(fork)
    return seen


def test_a_snapshot_brings_its_layout_back():
    spec = small("gpt", dropout=0.1)
    for first, second in run_ranks(_forked, 2, spec, text_batches(spec, [8])[0]):
        assert first == second


# --- another world ------------------------------------------------------------------------------


def _continue(
    rank: int, spec: ModelSpec, strategies: list[Strategy], batches: list[Batch], folder: Path
) -> list[Any]:
    """Load what an earlier world left, train, and leave it to the next."""
    from cona.engine.parallel import ParallelEngine

    engine = ParallelEngine(spec, strategies[0].layout, 1)
    if (folder / "state").exists():
        engine.load(folder / "state")
    steps = []
    for strategy, batch in zip(strategies, batches, strict=True):
        engine.switch(strategy.layout)
        steps.append(engine.train_step(batch, exec_mbs=strategy.mbs, lr=LR))
    engine.save(folder / "state")
    return steps


def test_losses_are_those_of_one_rank_through_worlds_of_four_two_and_four(tmp_path):
    spec = four_ranks("gpt")
    worlds = (
        ["dp2-tp2-pp1-mbs2-gbs8"] * 3 + ["dp1-tp1-pp4-mbs2-gbs16"] * 3,
        ["dp1-tp1-pp2-mbs2-gbs16"] * 4 + ["dp2-tp1-pp1-mbs2-gbs8"] * 3,
        ["dp1-tp2-pp2-mbs2-gbs8"] * 7,
    )
    strategies = [[Strategy.parse(text) for text in world] for world in worlds]
    batches = batches_of(spec, list(itertools.chain(*strategies)))
    (expected,) = run_ranks(_seeded, 1, spec, batches)
    found: list[Any] = []
    for world in strategies:
        share = batches[len(found) : len(found) + len(world)]
        found += run_ranks(_continue, world[0].num_gpus, spec, world, share, tmp_path)[0]
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)


def _seeded(rank: int, spec: ModelSpec, batches: list[Batch]) -> list[Any]:
    from cona.engine.megatron import build_engine

    engine = build_engine(spec, seed=1)
    return [engine.train_step(batch, exec_mbs=MBS, lr=LR) for batch in batches]


# --- many switches ------------------------------------------------------------------------------

NUM_SWITCHES, NUM_FIRST = 60, 12
"""Both whole rounds through the six layouts; the first ones make process groups."""


def _switch_often(rank: int, spec: ModelSpec, batch: Batch) -> list[dict[str, int]]:
    """Return what the process holds after each round through the layouts."""
    import resource

    from cona.engine.parallel import ParallelEngine

    layouts = list(dict.fromkeys(Strategy.parse(text).layout for text in WAY))
    way = itertools.cycle(layouts)
    engine = ParallelEngine(spec, next(way), 0)
    seen = []
    for _ in range(NUM_SWITCHES // len(layouts)):
        for _ in layouts:
            engine.switch(next(way))
            engine.train_step(batch, exec_mbs=2, lr=LR)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        holds = {
            "groups": engine.num_groups,
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "objects": len(gc.get_objects()),
            "resident_bytes": pages * resource.getpagesize(),
        }
        seen.append(holds)
    return seen


@pytest.mark.slow
def test_sixty_switches_leave_nothing_behind():
    spec = four_ranks("gpt", hidden_size=256, ffn_size=1024)
    state_bytes = 3 * 4 * spec.num_params
    batch = text_batches(spec, [8])[0]
    for seen in run_ranks(_switch_often, 4, spec, batch, timeout_s=900):
        first, *later = seen[NUM_FIRST // 6 - 1 :]
        assert all(holds["groups"] == first["groups"] for holds in later)
        assert all(holds["files"] <= first["files"] for holds in later)
        assert all(holds["objects"] == later[0]["objects"] for holds in later)
        # Whoever kept one vector of what a switch replaces would grow by 48 of them, four times the
        # state; what is seen is how malloc cuts its pages, up to half the state.
        assert later[-1]["resident_bytes"] - first["resident_bytes"] < state_bytes
