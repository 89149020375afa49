"""Time to progress: by hand, and what must hold for any noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import RunError
from cona.gns import GradientTerms
from cona.replay.progress import (
    ProgressNoise,
    chain_time_s,
    fixed_time_s,
    iterations_needed,
)
from cona.replay.trace import RecordedStep, Recording
from cona.replay.walk import ReplayStage
from cona.strategy import Strategy


def recording(*steps: tuple[int, float | None]) -> Recording:
    """Return a run of iterations (gbs, smoothed GNS)."""
    samples, found = 0, []
    for gbs, gns in steps:
        samples += gbs
        terms = None if gns is None else GradientTerms(tr_sigma=gns, mu_sq=1.0)
        found.append(
            RecordedStep(samples=samples, gbs=gbs, terms=terms, gns=gns, gns_low=gns and gns / 2)
        )
    return Recording(steps=tuple(found))


def stage(gbs: int, iteration_s: float, num_iterations: int, switch_s: float = 0.0) -> ReplayStage:
    return ReplayStage(
        strategy=Strategy.parse(f"dp1-tp1-pp1-mbs1-gbs{gbs}"),
        samples=0,
        train_s=0.0,
        switch_s=switch_s,
        gns=None,
        reason="",
        iteration_s=iteration_s,
        believed_s=None,
        num_iterations=num_iterations,
    )


# Two iterations at gbs 8 and GNS 8 progress 1/2 each, one at gbs 16 and GNS 48 progresses 1/4.
BY_HAND = ProgressNoise.of(recording((8, 8.0), (8, 8.0), (16, 48.0)))


def test_progress_by_hand() -> None:
    assert BY_HAND.steps == pytest.approx([0, 0.5, 1, 1.25])
    assert BY_HAND.end_steps == 1.25
    assert BY_HAND.gns_se[0] == pytest.approx(8 * math.log(2) / 1.6448536)


def test_times_by_hand() -> None:
    # At gbs 8 a stretch of GNS 48 progresses 1/7 an iteration: 1/4 takes 7/4 of them.
    assert BY_HAND.iterations(8) == pytest.approx([0, 1, 2, 3.75])
    assert fixed_time_s(8, 2.0, BY_HAND) == pytest.approx(7.5)
    assert fixed_time_s(8, 2.0, BY_HAND, target_steps=0.75) == pytest.approx(3.0)
    # Four times as noisy: gbs 8 at GNS 32 takes 5 iterations a step, at 192 25: 5 + 25/4.
    assert fixed_time_s(8, 1.0, BY_HAND.scaled(4)) == pytest.approx(11.25)
    # The run's own chain, with a switch of 3 s, whatever would follow.
    chain = [stage(8, 2.0, 2), stage(16, 5.0, 10, switch_s=3.0)]
    assert chain_time_s(chain, BY_HAND) == pytest.approx(2 * 2 + 3 + 5)
    assert chain_time_s(chain, BY_HAND, target_steps=1.125) == pytest.approx(2 * 2 + 3 + 2.5)
    assert chain_time_s(chain[:1], BY_HAND) is None
    assert iterations_needed([8, 16], BY_HAND) == 4


def test_iterations_without_an_estimate_take_a_neighbour() -> None:
    noise = ProgressNoise.of(recording((8, None), (8, 24.0), (8, None), (8, 8.0)))
    assert list(noise.gns) == [24, 24, 24, 8]
    with pytest.raises(RunError, match="no iteration with a noise scale"):
        ProgressNoise.of(recording((8, None)))


def test_the_player_shows_the_noise_where_the_progress_is() -> None:
    player = BY_HAND.play(0.999)
    shown = [player.advance(16 * (i + 1)).estimate for i in range(4)]
    # At gbs 16 the two stretches of GNS 8 take 3/4 of an iteration each: 2/3, 1 + 0.25*0.5 ...
    assert [e.gns for e in shown] == [8, 48, 48, 48]
    assert [e.num_terms for e in shown] == [1, 2, 3, 4]
    assert BY_HAND.last_samples == math.inf


def test_the_players_noise_keeps_its_relative_error_when_scaled() -> None:
    one, four = (noise.play(0.9).advance(8).estimate for noise in (BY_HAND, BY_HAND.scaled(4)))
    assert four.gns == 4 * (one.gns or 0)
    assert four.se_log == pytest.approx(one.se_log)


runs = st.lists(
    st.tuples(st.sampled_from([8, 16, 32]), st.floats(0.1, 1e4)), min_size=1, max_size=20
).map(lambda steps: recording(*steps))


@given(runs)
def test_the_recorded_batch_sizes_take_the_recorded_time(run: Recording) -> None:
    noise = ProgressNoise.of(run)
    chain = [stage(s.gbs, s.gbs / 10, 1) for s in run.steps]
    assert chain_time_s(chain, noise) == pytest.approx(sum(s.gbs for s in run.steps) / 10)


@given(runs, st.floats(1.01, 16), st.sampled_from([8, 16, 64]))
def test_more_noise_takes_longer_and_favours_large_batches(
    run: Recording, factor: float, gbs: int
) -> None:
    noise = ProgressNoise.of(run)
    slow, fast = (fixed_time_s(gbs, 1.0, n) for n in (noise.scaled(factor), noise))
    slow_2, fast_2 = (fixed_time_s(2 * gbs, 1.0, n) for n in (noise.scaled(factor), noise))
    assert slow > fast
    assert slow / slow_2 > fast / fast_2 * (1 - 1e-9)
    # never slower with a larger batch of the same T, and at most twice as fast
    assert slow_2 <= slow <= 2 * slow_2 * (1 + 1e-9)


@given(runs, st.lists(st.tuples(st.sampled_from([8, 64]), st.integers(1, 5)), max_size=5))
def test_a_chain_lies_between_its_fastest_and_slowest_strategy(
    run: Recording, parts: list[tuple[int, int]]
) -> None:
    noise = ProgressNoise.of(run)
    chain = [stage(gbs, 1.0, count) for gbs, count in parts]
    chain.append(stage(8, 1.0, iterations_needed([8], noise)))
    found = chain_time_s(chain, noise)
    assert found is not None
    fastest, slowest = fixed_time_s(64, 1.0, noise), fixed_time_s(8, 1.0, noise)
    assert fastest * (1 - 1e-9) <= found <= slowest * (1 + 1e-9)


@given(runs, st.floats(0, 1), st.floats(0, 1))
def test_further_targets_take_longer(run: Recording, one: float, other: float) -> None:
    noise = ProgressNoise.of(run)
    low, high = (share * noise.end_steps for share in sorted((one, other)))
    assert fixed_time_s(8, 1.0, noise, low) <= fixed_time_s(8, 1.0, noise, high)
    assert np.all(np.diff(noise.iterations(8)) > 0)
