"""Rank 0 leads: what it does all ranks do, what is refused is refused once, nobody hangs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from cona.engine.base import Batch
from cona.errors import ConfigError, RunError
from cona.strategy import Layout, Techniques

DP4, PP4, DP2 = Layout(dp=4, tp=1, pp=1), Layout(dp=1, tp=1, pp=4), Layout(dp=2, tp=1, pp=1)


def batch(samples: int, seed: int = 0, seq: int = 16) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 512, (samples, seq + 1))
    mask = np.ones((samples, seq), dtype=bool)
    return Batch(tokens=tokens[:, :-1], labels=tokens[:, 1:], loss_mask=mask)


def led(rank: int, lead: Any, *args: Any) -> Any:
    """Be one of the ranks of a toy; rank 0 returns what ``lead`` returns."""
    import torch.distributed as dist
    import toy_ranks

    from cona.engine import factory, ranks

    factory.build_live_engine = toy_ranks.build  # type: ignore[assignment]
    group = dist.new_group(backend="gloo")
    if rank:
        ranks.serve(group)
        return None
    leader = ranks.Leader(group)
    answer = lead(leader, *args)
    leader.stop()
    return answer


def built(leader: Any, layout: Layout = DP4) -> Any:
    return leader.build(None, layout, seed=0, engine=None, techniques=Techniques())


def three_losses(engine: Any) -> list[float]:
    return [engine.train_step(batch(8), exec_mbs=2, lr=1e-2).loss_nats for _ in range(3)]


def train(leader: Any, folder: Path) -> tuple[list[float], ...]:
    engine = built(leader)
    first = three_losses(engine)
    engine.save(folder / "3")
    state = engine.snapshot()
    engine.switch(PP4)
    then = three_losses(engine)
    engine.restore(state)
    assert not leader._rank._snapshots  # nothing is left in memory
    assert engine.layout == DP4
    back = three_losses(engine)
    other = built(leader, PP4)
    assert other.layout == PP4
    other.load(folder / "3")
    loaded = three_losses(other)
    assert other.evaluate([batch(4), batch(2)]).num_tokens == 96
    return first, then, back, loaded


def test_every_call_reaches_every_rank(tmp_path: Path) -> None:
    first, then, back, loaded = run_ranks(led, 4, train, tmp_path)[0]
    assert first[0] == pytest.approx(8 * 16 * np.log(512))
    assert then == back == loaded
    assert then[-1] < first[0]


def refuse(leader: Any, folder: Path) -> list[str]:
    said = []
    for attempt in (lambda: built(leader, DP2), lambda: built(leader).load(folder)):
        with pytest.raises((ConfigError, RunError)) as error:
            attempt()
        said.append(str(error.value))
    stats = built(leader).train_step(batch(8), exec_mbs=2, lr=1e-2)
    return [*said, f"{stats.num_tokens}"]


def test_what_every_rank_refuses_is_raised_once_and_the_ranks_go_on(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")
    layout, damaged, tokens = run_ranks(led, 4, refuse, tmp_path)[0]
    assert "does not fit 4 ranks" in layout
    assert "damaged" in damaged
    assert tokens == "128"


def measure(leader: Any, gbs: int, seq: int) -> float:
    built(leader, DP2)
    sent = batch(gbs, seq=seq)
    times = []
    for _ in range(20):
        began_s = time.perf_counter()
        leader.everywhere("says", sent)
        times.append(time.perf_counter() - began_s)
    return float(np.median(times))


def test_a_call_costs_milliseconds() -> None:
    # 8 x 64 tokens: 0.4 ms on an idle machine; the bound is for a busy one.
    assert run_ranks(led, 2, measure, 8, 64)[0] < 0.05


def go_another_way(leader: Any) -> None:
    built(leader, DP2)
    leader._refused = True  # as if rank 0 alone had refused
    leader.everywhere("says", "hello")
    leader.everywhere("says", "hello")


def test_a_rank_that_goes_another_way_ends_instead_of_hanging() -> None:
    with pytest.raises(AssertionError, match="went another way|closed by peer"):
        run_ranks(led, 2, go_another_way, timeout_s=60)
