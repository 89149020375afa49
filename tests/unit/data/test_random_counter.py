from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cona.data.counter import Purpose, random_bits, uniforms

COUNTS = st.integers(0, 2**64 - 1)


@given(COUNTS, COUNTS, st.integers(0, 20), st.integers(0, 20))
def test_a_longer_draw_begins_with_the_shorter(
    seed: int, index: int, short: int, more: int
) -> None:
    long = random_bits(Purpose.ORDER, seed, index, short + more)
    assert np.array_equal(long[:short], random_bits(Purpose.ORDER, seed, index, short))


def test_purpose_seed_and_index_each_give_other_numbers() -> None:
    keys = [(p, seed, index) for p in Purpose for seed in range(3) for index in range(3)]
    draws = {int(bits) for key in keys for bits in random_bits(*key, 100)}
    assert len(draws) == len(keys) * 100


def test_uniforms_are_the_upper_53_bits_in_the_unit_interval() -> None:
    bits = random_bits(Purpose.TRAINING_MASKS, 5, 7, 10_000)
    draws = uniforms(Purpose.TRAINING_MASKS, 5, 7, 10_000)
    assert draws.tolist() == [(int(b) // 2**11) / 2**53 for b in bits]
    assert 0 <= draws.min() < 0.001
    assert 0.999 < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.02


def test_numbers_never_change() -> None:
    # Stored trajectories rest on these. Computed from the definition of Philox 4x64-10 (Salmon et
    # al. 2011) for counters (1, 0, 0, 1) and (1, 0, 0, 2).
    expected = [6312158256571094726, 10634814581434429480]
    assert random_bits(Purpose.ORDER, 0, 0, 2).tolist() == expected
    expected = [16266898229741984144, 4577440484816831347]
    assert random_bits(Purpose.TRAINING_MASKS, 3, 2**40, 2).tolist() == expected
