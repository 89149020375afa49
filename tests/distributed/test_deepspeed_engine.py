"""The DeepSpeed engine trains as the single process does, whatever ZeRO spreads, and can switch."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_fixtures import FAMILIES, random_batch, tiny
from ranks import run_ranks

from cona.strategy import Layout

LR = 1e-2
SIZES = (8, 16, 8)
"""Batches of three iterations, samples."""

DP2, TP2 = (Layout(dp=2, tp=1, pp=1), Layout(dp=1, tp=2, pp=1))
DP2TP2 = Layout(dp=2, tp=2, pp=1)

Terms = tuple[float, float, float]
"""Loss, gradient norm and mean square norm of the micro-batches' gradients of one iteration."""


class Case(NamedTuple):
    """A model, a ZeRO stage, and a layout for each iteration."""

    family: str
    zero_stage: int
    layouts: tuple[Layout, ...]
    switch_path: str = "live"

    def __str__(self) -> str:
        way = ">".join(str(layout) for layout in dict.fromkeys(self.layouts))
        return f"{self.family}-zero{self.zero_stage}-{way}-{self.switch_path}"


def _steady(family: str, zero_stage: int, layout: Layout) -> Case:
    return Case(family, zero_stage, (layout,) * len(SIZES))


PARITY = [
    *(_steady("gpt", stage, layout) for stage, layout in ((1, DP2), (2, TP2), (3, DP2))),
    *(_steady("llama", stage, layout) for stage, layout in ((1, TP2), (2, DP2), (3, TP2))),
    *(_steady("bert", stage, layout) for stage, layout in ((1, DP2), (2, TP2), (3, DP2))),
]
"""Every family, stage and kind of layout; ``FOUR_RANKS`` has all of their combinations."""
SWITCHES = [
    Case("gpt", 3, (DP2, TP2, DP2)),
    Case("bert", 1, (TP2, DP2, TP2)),
    Case("llama", 1, (TP2, DP2, DP2), "universal"),
]
FOUR_RANKS = [
    *(_steady(family, stage, DP2TP2) for family in FAMILIES for stage in (1, 2, 3)),
    Case("gpt", 2, (DP2TP2, Layout(dp=4, tp=1, pp=1), Layout(dp=1, tp=4, pp=1)), "universal"),
    Case("llama", 3, (DP2TP2, Layout(dp=1, tp=4, pp=1), DP2TP2), "universal"),
    Case("bert", 3, (DP2TP2, Layout(dp=1, tp=4, pp=1), Layout(dp=4, tp=1, pp=1))),
]


def _spec(family: str) -> Any:
    return tiny(family, num_kv_heads=4)


def _terms(engine: Any, spec: Any, index: int) -> Terms:
    batch = random_batch(spec, SIZES[index], seed=index)
    stats = engine.train_step(batch, exec_mbs=2, lr=LR)
    return stats.loss_nats, stats.grad_norm, stats.sum_sq_microbatch


def _run_cases(_: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [_run_case(case) for case in cases]


def _run_case(case: Case) -> dict[str, Any]:
    from cona.engine.deepspeed import DeepSpeedEngine

    spec = _spec(case.family)
    engine = DeepSpeedEngine(
        spec, case.layouts[0], 1, zero_stage=case.zero_stage, switch_path=case.switch_path
    )
    terms, costs = [], []
    for index, layout in enumerate(case.layouts):
        costs.append(engine.switch(layout))
        terms.append(_terms(engine, spec, index))
    costs = [(cost.seconds, cost.moved_bytes, cost.needed_bytes) for cost in costs]
    nats = engine.evaluate([random_batch(spec, 11, seed=9)]).nats
    return {"terms": terms, "costs": costs, "nats": nats}


@pytest.fixture(scope="module")
def single() -> Callable[[str], tuple[list[Terms], float]]:
    """What one process gets, by family."""
    from cona.engine.megatron import build_engine

    def run(family: str) -> tuple[list[Terms], float]:
        spec = _spec(family)
        engine = build_engine(spec, 1)
        terms = [_terms(engine, spec, index) for index in range(len(SIZES))]
        return terms, engine.evaluate([random_batch(spec, 11, seed=9)]).nats

    found = {family: run(family) for family in FAMILIES}
    return found.__getitem__


def _check(got: dict[str, Any], expected: tuple[list[Terms], float]) -> None:
    terms, nats = expected
    for (loss, norm, sum_sq), (e_loss, e_norm, e_sum_sq) in zip(got["terms"], terms, strict=True):
        assert loss == pytest.approx(e_loss, rel=1e-5)
        assert norm == pytest.approx(e_norm, rel=1e-5)
        assert sum_sq == pytest.approx(e_sum_sq, rel=1e-4)
    assert got["nats"] == pytest.approx(nats, rel=1e-5)


@pytest.fixture(scope="module")
def two_ranks() -> dict[Case, dict[str, Any]]:
    cases = PARITY + SWITCHES
    first, second = run_ranks(_run_cases, 2, cases, timeout_s=400)
    for mine, theirs in zip(first, second, strict=True):
        assert mine["terms"] == theirs["terms"]
    return dict(zip(cases, first, strict=True))


@pytest.mark.parametrize("case", PARITY + SWITCHES, ids=str)
def test_two_ranks_equal_one_process(case, two_ranks, single):
    _check(two_ranks[case], single(case.family))


def test_a_switch_tells_what_it_cost(two_ranks):
    live, universal = (two_ranks[case]["costs"] for case in (SWITCHES[0], SWITCHES[2]))
    assert live[0] == (0.0, 0, 0)  # no change, no cost
    assert live[1][1:] == (0, 0)  # from whole weights to slices nothing moves
    assert live[2][0] > 0
    assert live[2][1] == live[2][2] > 0
    assert universal[1][1] > universal[1][2] > 0


@pytest.mark.slow
def test_four_ranks_equal_one_process(single):
    results = run_ranks(_run_cases, 4, FOUR_RANKS, timeout_s=900)[0]
    for case, got in zip(FOUR_RANKS, results, strict=True):
        _check(got, single(case.family))


# --- state --------------------------------------------------------------------------------------


def _keep_and_come_back(_: int, folder: str) -> dict[str, Any]:
    import torch

    from cona.engine.deepspeed import DeepSpeedEngine
    from cona.engine.parallel import ParallelEngine
    from cona.engine.stage import Numerics

    spec = _spec("llama")
    engine = DeepSpeedEngine(spec, DP2, 1, zero_stage=2)
    _terms(engine, spec, 0)
    kept = engine.snapshot()
    engine.save(Path(folder) / "state")
    first = _terms(engine, spec, 1)
    engine.restore(kept)
    again = _terms(engine, spec, 1)
    engine.switch(TP2)
    engine.restore(kept)  # back to the layout of the snapshot
    layout, back = engine.layout, _terms(engine, spec, 1)
    fresh = DeepSpeedEngine(spec, TP2, 2, zero_stage=3)
    fresh.load(Path(folder) / "state")
    other = ParallelEngine(spec, TP2, 3)
    other.load(Path(folder) / "state")
    loaded = [_terms(engine, spec, 1) for engine in (fresh, other)]
    return {
        "first": first,
        "exact": [again, back],
        "layout": str(layout),
        "loaded": loaded,
        "bf16": _bf16(DeepSpeedEngine(spec, DP2, 1, numerics=Numerics(precision="bf16")), spec),
        "recomputed": _terms(
            DeepSpeedEngine(spec, DP2, 1, zero_stage=3, numerics=Numerics(recompute="full")),
            spec,
            0,
        ),
        "broken": _break(DeepSpeedEngine(spec, TP2, 1), spec, torch),
    }


def _bf16(engine: Any, spec: Any) -> tuple[float, float]:
    """Loss, and the error of the switch there and back: master weights are float32."""
    loss = _terms(engine, spec, 0)[0]
    before = engine.snapshot().vectors["weights"]
    engine.switch(TP2)
    engine.switch(DP2)
    return loss, float((engine.snapshot().vectors["weights"] - before).abs().max())


def _break(engine: Any, spec: Any, torch: Any) -> tuple[bool, float, int]:
    """An iteration with a weight that is infinite: skipped, and not counted."""
    state = engine.snapshot()
    state.vectors["weights"][0] = torch.inf
    engine.restore(state)
    stats = engine.train_step(random_batch(spec, 4), exec_mbs=1, lr=LR)
    return stats.skipped, stats.grad_norm, engine.snapshot().scalars["num_updates"]


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(_keep_and_come_back, 2, folder, timeout_s=200)[0]


def test_a_snapshot_is_exact_and_outlives_a_switch(states):
    assert states["exact"] == [states["first"]] * 2
    assert states["layout"] == str(DP2)


def test_another_layout_stage_and_engine_load_what_was_saved(states):
    for loaded in states["loaded"]:
        assert loaded == pytest.approx(states["first"], rel=1e-5)


def test_bf16_keeps_master_weights_through_a_switch(states, single):
    loss, error = states["bf16"]
    assert loss == pytest.approx(single("llama")[0][0][0], rel=1e-2)
    assert error == 0.0


def test_recomputed_activations_change_nothing(states, single):
    assert states["recomputed"] == pytest.approx(single("llama")[0][0], rel=1e-5)


def test_a_gradient_that_is_not_finite_is_skipped(states):
    skipped, norm, num_updates = states["broken"]
    assert skipped
    assert not math.isfinite(norm)
    assert num_updates == 0


# --- refusals -----------------------------------------------------------------------------------


def _refusals(_: int) -> list[str]:
    from cona.engine.deepspeed import DeepSpeedEngine
    from cona.engine.stage import Numerics
    from cona.errors import ConfigError

    spec, pp2 = _spec("gpt"), Layout(dp=1, tp=1, pp=2)
    engine = DeepSpeedEngine(spec, DP2, 1, zero_stage=3, switch_path="universal")
    attempts: list[Callable[[], Any]] = [
        lambda: DeepSpeedEngine(spec, pp2, 1),
        lambda: DeepSpeedEngine(spec, DP2, 1, zero_stage=0),
        lambda: DeepSpeedEngine(spec, DP2, 1, numerics=Numerics(precision="fp16")),
        lambda: DeepSpeedEngine(spec, DP2, 1, switch_path="lift"),
        lambda: engine.switch(pp2),
        lambda: engine.switch(TP2),
        lambda: engine.train_step(random_batch(spec, 6), exec_mbs=2, lr=LR),
    ]
    found = []
    for attempt in attempts:
        try:
            attempt()
        except ConfigError as error:
            found.append(str(error))
    _terms(engine, spec, 0)  # nothing has changed
    return found


def test_what_deepspeed_cannot_do_is_one_sentence_with_a_way_out():
    rules = (
        "no pipeline parallelism; nearest: dp2-tp1-pp1",
        "zero_stage 0: .*nearest: 1, or engine megatron",
        "precision fp16: .*nearest: bf16",
        "switch_path 'lift': did you mean 'live'",
        "no pipeline parallelism; nearest: dp2-tp1-pp1",
        "stage 3 .*nearest: zero_stage 2, or switch_path live",
        "a batch of 6 samples does not divide .* nearest batch: ",
    )
    found = run_ranks(_refusals, 2)[0]
    assert len(found) == len(rules)
    for sentence, rule in zip(found, rules, strict=True):
        assert re.search(rule, sentence), sentence
