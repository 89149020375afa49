"""Strategies and their divisibility rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import tiny_model

from cona.errors import ConfigError
from cona.specs import LadderSpec
from cona.strategy import Layout, Strategy, StrategySpace, Techniques, divisors, exec_mbs

LADDER = LadderSpec(gbs_min=8, gbs_max=64, mbs_max=4)


def space(num_gpus: int = 4, **model: object) -> StrategySpace:
    return StrategySpace(model=tiny_model(**model), num_gpus=num_gpus, ladder=LADDER)


def test_counts_by_hand() -> None:
    strategy = Strategy(dp=2, tp=1, pp=2, mbs=4, gbs=64)
    assert strategy.num_gpus == 4
    assert strategy.num_microbatches == 8
    assert strategy.layout == Layout(dp=2, tp=1, pp=2)
    assert str(strategy) == "dp2-tp1-pp2-mbs4-gbs64"


def test_space_by_hand() -> None:
    # 4 GPUs: (dp,tp,pp) in (4,1,1) (2,1,2) (1,1,4) (2,2,1) (1,2,2) (1,4,1); gbs 8 and mbs <= 4:
    # dp4 allows mbs 1, 2; dp2 and dp1 allow 1, 2, 4.
    assert len(space().layouts) == 6
    assert len(space().at(8)) == 2 + 2 * 3 + 3 * 3
    assert {s.layout.tp for s in space(num_kv_heads=2).at(8)} == {1, 2}
    assert {s.layout.pp for s in space(num_layers=6).at(8)} == {1, 2}


@given(st.sampled_from([1, 2, 4, 6, 8, 16]), st.integers(1, 96))
def test_every_member_obeys_every_rule(num_gpus: int, gbs: int) -> None:
    model = space(num_gpus).model
    members = space(num_gpus).at(gbs)
    assert len(set(members)) == len(members)
    for s in members:
        assert s.dp * s.tp * s.pp == num_gpus
        assert gbs % (s.dp * s.mbs) == 0
        assert s.mbs <= LADDER.mbs_max
        assert model.num_layers % s.pp == 0
        for size in (model.hidden_size, model.num_heads, model.num_kv_heads, model.ffn_size):
            assert size % s.tp == 0
        assert model.padded_vocab_size % s.tp == 0
        assert space(num_gpus).why_not(s) is None
        assert Strategy.parse(str(s)) == s


def test_reasons_name_value_and_rule() -> None:
    why_not = space().why_not
    assert why_not(Strategy(dp=1, tp=1, pp=2, mbs=1, gbs=8)) == (
        "dp*tp*pp = 2 is not the number of GPUs, 4"
    )
    assert "mbs 8 exceeds mbs_max 4" in str(why_not(Strategy(dp=1, tp=1, pp=4, mbs=8, gbs=8)))
    broken = space(num_gpus=3).why_not(Strategy(dp=1, tp=3, pp=1, mbs=1, gbs=8))
    assert broken == "hidden_size 16 is not divisible by tp 3"


@pytest.mark.parametrize(("cp", "valid"), [(3, 2), (8, 4)])
def test_context_parallel_must_divide_the_gpus(cp: int, valid: int) -> None:
    used = Techniques(context_parallel=cp)
    uneven = StrategySpace(model=tiny_model(), num_gpus=4, ladder=LADDER, techniques=used)
    assert uneven.layouts == ()
    sentence = f"context_parallel {cp} does not divide the 4 GPUs; nearest: {valid}"
    assert uneven.why_not(Strategy(dp=1, tp=1, pp=1, mbs=1, gbs=8, techniques=used)) == sentence


def test_context_parallel_that_divides_shares_the_gpus() -> None:
    used = Techniques(context_parallel=2)
    even = StrategySpace(model=tiny_model(), num_gpus=4, ladder=LADDER, techniques=used)
    assert {strategy.num_gpus for strategy in even.at(8)} == {4}


def test_indivisible_batch_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"gbs 10 is not divisible by dp\*mbs = 4\*2; nearest: 8"):
        Strategy(dp=4, tp=1, pp=1, mbs=2, gbs=10)
    with pytest.raises(ConfigError, match="mbs = 0"):
        Strategy(dp=4, tp=1, pp=1, mbs=0, gbs=8)


@pytest.mark.parametrize("text", ["dp2", "dp2-tp1-pp2-mbs4", "dp2-tp1-pp2-mbs4-gbs64-x", ""])
def test_parse_refuses_other_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a form like"):
        Strategy.parse(text)


@given(st.integers(2, 512), st.integers(1, 64))
def test_executed_micro_batch_leaves_two(gbs: int, largest: int) -> None:
    mbs = exec_mbs(gbs, largest)
    assert gbs % mbs == 0
    assert gbs // mbs >= 2
    assert mbs <= largest


def test_executed_micro_batch_by_hand() -> None:
    assert [exec_mbs(g, 16) for g in (8, 16, 24, 32, 40, 64, 256)] == [4, 8, 12, 16, 10, 16, 16]
    assert exec_mbs(1, 16) == 1


@given(st.integers(1, 2000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
