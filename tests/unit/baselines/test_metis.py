"""Metis by hand: 4 layers, 2 stages; see profile_cases for the figures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_cases import SIZES, lines, profile_query, write_profile

from baselines.metis import Metis, MetisSearch
from cona.errors import ConfigError
from cona.planners.chain import capped_shares, proportional_cuts
from cona.planners.groupings import device_groups


def search(folder: Path, rules: Metis | None = None, *, num_gpus: int = 2, **profile: object):
    query = profile_query(write_profile(folder, **profile), num_gpus=num_gpus, gbs=4)
    return MetisSearch(query, rules or Metis())


def test_two_stages_by_hand(tmp_path: Path) -> None:
    # Stages 63 and 75 ms, m = 4: 3*75 + 138 = 363. fb_sync 140 - 138 = 2 ms and the batch
    # generator 0.5 ms, four times each; optimizer 2*12/(2*1); 1*4*8 elements at 8,000/s: 4 ms.
    plan = search(tmp_path).plan((1, 1), 4)
    assert plan is not None
    assert [stage.seconds for stage in plan.stages] == pytest.approx([0.063, 0.075])
    assert plan.believed_s == pytest.approx(0.363 + 0.008 + 0.012 + 0.004 + 0.002)
    assert [s.memory_bytes for s in plan.stages] == [5 * 250e6] * 2


def test_a_whole_that_is_faster_than_its_layers_is_said(tmp_path: Path) -> None:
    # 130 ms less 138 is -8 ms, for each of 4 micro-batches; at 140 ms nothing is to be said.
    plan = search(tmp_path, forward_backward_ms=130.0).plan((1, 1), 4)
    assert plan is not None
    assert plan.believed_s == pytest.approx(0.363 - 0.032 + 0.012 + 0.004 + 0.002)
    assert "fb_sync is negative" in plan.notes
    usual = search(tmp_path).plan((1, 1), 4)
    assert usual is not None
    assert usual.notes == ""


def test_data_parallel_by_hand(tmp_path: Path) -> None:
    # m = 2: 2*138; fb_sync 2*2; optimizer 24; 2*(1)/(2*8000) * 8000 bytes = 1 s; generator 1 ms.
    plan = search(tmp_path).plan((2,), 2)
    assert plan is not None
    assert str(plan) == "dp2-tp1-pp1-mbs1-gbs4"
    assert plan.believed_s == pytest.approx(0.276 + 0.004 + 0.024 + 1.0 + 0.001)


def test_the_message_before_the_head_is_the_vocabularys(tmp_path: Path) -> None:
    # The head alone on the second stage: 123 and 15 ms; 1*4*100 elements at 8,000/s: 50 ms.
    found = search(tmp_path)
    plan = found.price(((1, 1), (1, 1)), (0, 5, 6), 4)
    assert [stage.num_layers for stage in plan.stages] == [4, 0]
    assert plan.believed_s == pytest.approx(3 * 0.123 + 0.138 + 0.008 + 0.012 + 0.050 + 0.002)
    split = found.price(((1, 2), (1, 2)), (0, 5, 6), 4)
    assert found._messages_s(((1, 2), (1, 2)), (0, 5, 6), 4) == pytest.approx(0.5 * 0.1)
    assert split.num_gpus == 4


def test_messages_in_bytes_are_an_option(tmp_path: Path) -> None:
    ours = search(tmp_path, Metis(boundary_element_bytes=2)).plan((1, 1), 4)
    original = search(tmp_path).plan((1, 1), 4)
    assert ours is not None
    assert original is not None
    assert ours.believed_s - original.believed_s == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("gpu_memory_gb", "per_gpu", "degrees"),
    [
        (1.3, False, (2, 1)),  # 5 * 0.5 GB of one replica is within the 2.6 GB of the group
        (1.2, False, (1, 2)),  # but not within 2.4
        (1.3, True, (1, 2)),  # nor within one GPU's, where tp 2 needs 1.25
        (2.5, True, (2, 1)),
    ],
)
def test_tensor_parallel_only_if_memory_asks(
    tmp_path: Path, gpu_memory_gb: float, per_gpu: bool, degrees: tuple[int, int]
) -> None:
    rules = Metis(memory_per_gpu=per_gpu)
    plan = search(tmp_path, rules, gpu_memory_gb=gpu_memory_gb).plan((2,), 2)
    assert plan is not None
    assert [(stage.dp, stage.tp) for stage in plan.stages] == [degrees]


def test_layers_are_cut_anew_before_degrees_change(tmp_path: Path) -> None:
    # In MB, times 5: 50 + 200 + 60 and 60 + 60 + 50; if the second layer moves, 250 and 230.
    csv = lines(SIZES, memory_mb=lambda layer: {0: 50, 1: 200, 5: 50}.get(layer, 60))
    at_once = search(tmp_path, csv=csv, gpu_memory_gb=1.6).plan((1, 1), 4)
    again = search(tmp_path / "again", csv=csv, gpu_memory_gb=1.3).plan((1, 1), 4)
    assert at_once is not None
    assert again is not None
    assert [stage.num_layers for stage in at_once.stages] == [2, 2]
    assert [stage.num_layers for stage in again.stages] == [1, 3]
    assert [stage.memory_bytes for stage in again.stages] == pytest.approx([1.25e9, 1.15e9])
    never = search(tmp_path / "never", Metis(max_repartitions=0), csv=csv, gpu_memory_gb=1.3)
    assert not never.query.fits(never.plan((1, 1), 4))


def test_a_stage_too_wide_for_its_samples_halves_dp(tmp_path: Path) -> None:
    # Four micro-batches of one sample leave nothing for a second replica.
    plan = search(tmp_path).plan((2,), 4)
    assert plan is not None
    assert str(plan) == "dp1-tp2-pp1-mbs1-gbs4"
    assert search(tmp_path, Metis(halve_idle_dp=False)).plan((2,), 4) is None


def test_the_cheapest_of_all_groups_wins(tmp_path: Path) -> None:
    query = profile_query(write_profile(tmp_path), num_gpus=2, gbs=4)
    answer = Metis().plan(query)
    # One group of two with m = 2 and 4 (mbs 4 was not measured, so m = 1 is none), two groups of
    # one with m = 2 and 4.
    assert [str(plan.strategy()) for plan in answer.evaluated] == [
        "dp2-tp1-pp1-mbs2-gbs4",
        "dp2-tp1-pp1-mbs1-gbs4",
        "dp1-tp2-pp1-mbs1-gbs4",
        "dp1-tp1-pp2-mbs2-gbs4",
        "dp1-tp1-pp2-mbs1-gbs4",
    ]
    assert answer.best == min(answer.evaluated, key=lambda plan: plan.believed_s)
    assert str(answer.best) == "dp1-tp2-pp1-mbs1-gbs4"


def test_nothing_fits_and_what_is_missing(tmp_path: Path) -> None:
    small = profile_query(write_profile(tmp_path, gpu_memory_gb=0.3), num_gpus=2, gbs=4)
    with pytest.raises(ConfigError, match="metis: nothing feasible at gbs 4 on 2 GPUs: closest"):
        Metis().plan(small)
    hole = lines([size for size in SIZES if size != (1, 1)])
    holed = profile_query(write_profile(tmp_path / "hole", hole), num_gpus=2, gbs=4)
    with pytest.raises(ConfigError, match=r"tp 1, mbs 1 was not measured \(measured: tp 1: mbs 2"):
        Metis().plan(holed)


# --- groups and cuts ------------------------------------------------------------------------------


def groups(num_gpus: int, num_stages: int, *, orders: int = 99, share: float = 1.0) -> list:
    return list(device_groups(num_gpus, num_stages, least_share=share, max_orders=orders))


def test_groups_by_hand() -> None:
    assert groups(8, 1) == [(8,)]
    assert groups(8, 2) == [(4, 4)]
    assert groups(8, 3) == [(2, 2, 4), (2, 4, 2), (4, 2, 2)]
    assert groups(8, 3, orders=2) == [(2, 2, 4), (2, 4, 2)]
    assert (1, 1, 1, 1, 4) in groups(8, 5)
    assert (1, 1, 2, 2, 2) in groups(8, 5)
    assert groups(6, 2) == [(3, 3), (4, 2), (2, 4)][:1]
    assert groups(8, 2, share=0) == [(4, 4)]


@given(st.integers(1, 16), st.integers(1, 16))
def test_groups_use_up_the_gpus(num_gpus: int, num_stages: int) -> None:
    found = groups(num_gpus, num_stages, orders=5)
    assert len(set(found)) == len(found)
    for sizes in found:
        assert (len(sizes), sum(sizes)) == (num_stages, num_gpus)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12), st.data())
def test_every_stage_has_a_piece(loads: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(loads)))
    shares = data.draw(st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    cuts = proportional_cuts(loads, shares)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(loads), count + 1)
    assert all(a < b for a, b in pairwise(cuts))


def test_cuts_follow_the_shares() -> None:
    assert proportional_cuts([1] * 8, [1, 1]) == (0, 4, 8)
    assert proportional_cuts([1] * 8, [3, 1]) == (0, 6, 8)
    assert proportional_cuts([1, 1, 1, 9], [1, 1]) == (0, 3, 4)
    assert proportional_cuts([1, 1], [1, 1e-9]) == (0, 1, 2)


def test_capped_stages_leave_the_rest_by_speed() -> None:
    assert capped_shares([1, 1, 3], {}, 10) == pytest.approx((2, 2, 6))
    assert capped_shares([1, 1, 3], {0: 2}, 10) == pytest.approx((2, 2, 6))
    assert capped_shares([1, 1, 3], {2: 4}, 10) == pytest.approx((3, 3, 4))
    assert capped_shares([1, 1], {0: 4, 1: 4}, 10) == (4, 4)
