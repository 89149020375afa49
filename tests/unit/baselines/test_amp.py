"""AMP by hand: 4 layers, 2 stages; see profile_cases for the figures."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_cases import SIZES, lines, profile_query, write_profile

from baselines.amp import AMP
from cona.errors import ConfigError
from cona.planners import Plan
from cona.planners.chain import balanced_cuts, even_cuts


def evaluated(folder: Path, *, num_gpus: int, gbs: int, **profile: object) -> dict[str, Plan]:
    query = profile_query(write_profile(folder, **profile), num_gpus=num_gpus, gbs=gbs)
    return {str(plan.strategy()): plan for plan in AMP().plan(query).evaluated}


def test_two_stages_by_hand(tmp_path: Path) -> None:
    # A forward pass of all: 1 + 4*10 + 5 = 46 ms, times 3. Stages 63 and 75 ms, m = 4; the message
    # of 1*4*8 elements at 2,000 per second takes 16 ms. T = 3*75 + 16 + 138.
    plan = evaluated(tmp_path, num_gpus=2, gbs=4)["dp1-tp1-pp2-mbs1-gbs4"]
    assert [stage.seconds for stage in plan.stages] == pytest.approx([0.063, 0.075])
    assert [(s.first_layer, s.num_layers) for s in plan.stages] == [(0, 2), (2, 2)]
    assert plan.believed_s == pytest.approx(0.379)


def test_gradients_by_hand(tmp_path: Path) -> None:
    # 4 layers of 12*8*8 and two tables of 8*100 elements: 4672; 2*(2-1)/(2*2000)*4672 = 2.336 s.
    plans = evaluated(tmp_path, num_gpus=2, gbs=4)
    assert plans["dp2-tp1-pp1-mbs1-gbs4"].believed_s == pytest.approx(2 * 0.138 + 2.336)
    # tp halves compute, and nothing else is left.
    assert plans["dp1-tp2-pp1-mbs1-gbs4"].believed_s == pytest.approx(4 * 0.069)


def test_links_between_nodes_are_slower(tmp_path: Path) -> None:
    # Two stages of one node each: the message passes 1,000 elements/s; all-reduces stay inside.
    plan = evaluated(tmp_path, num_gpus=4, gbs=4)["dp2-tp1-pp2-mbs1-gbs4"]
    stages = 2 * 768 + 800  # elements of each: two layers and an end
    assert plan.believed_s == pytest.approx(0.075 + 0.032 + 0.138 + stages / 2000)


def test_a_micro_batch_scales_one_sample(tmp_path: Path) -> None:
    # The two-sample rows play no part: here they take a second each.
    slow = [*lines([(1, 1)]), *lines([(1, 2)], extra_ms=1000)[1:]]
    plan = evaluated(tmp_path, num_gpus=2, gbs=4, csv=slow)["dp1-tp1-pp2-mbs2-gbs4"]
    assert plan.believed_s == pytest.approx(0.150 + 0.032 + 0.276)


def test_one_micro_batch_has_even_stages(tmp_path: Path) -> None:
    # A head of 3*50 ms is worth a stage of its own, but not for a single micro-batch.
    heavy = [
        line.replace("5,1,1,5.0", "5,1,1,50.0") if line.startswith("5,1,1") else line
        for line in lines(SIZES)
    ]
    plans = evaluated(tmp_path, num_gpus=2, gbs=2, csv=heavy)
    assert plans["dp1-tp1-pp2-mbs1-gbs2"].unequal_layers == "4+0"
    assert plans["dp1-tp1-pp2-mbs2-gbs2"].unequal_layers is None


def test_everything_that_divides_is_evaluated(tmp_path: Path) -> None:
    assert set(evaluated(tmp_path, num_gpus=4, gbs=4)) == {
        *(f"dp1-tp1-pp4-mbs{b}-gbs4" for b in (1, 2)),
        *(f"dp2-tp1-pp2-mbs{b}-gbs4" for b in (1, 2)),
        "dp4-tp1-pp1-mbs1-gbs4",
        *(f"dp1-tp2-pp2-mbs{b}-gbs4" for b in (1, 2)),
        *(f"dp2-tp2-pp1-mbs{b}-gbs4" for b in (1, 2)),
    }


def test_memory_only_counts_if_asked_for(tmp_path: Path) -> None:
    # The fastest, dp1-tp2, needs 250 MB; a stage of two layers and an end 250 MB, at tp 2 half.
    profile = write_profile(tmp_path, gpu_memory_gb=0.2)
    query = profile_query(profile, num_gpus=4, gbs=4)
    assert AMP().plan(query).best.memory_bytes is None
    fitting = AMP(memory=True).plan(query).best
    assert fitting.memory_bytes is not None
    assert fitting.memory_bytes <= 0.2e9
    tight = profile_query(write_profile(tmp_path / "tight", gpu_memory_gb=0.1), num_gpus=4, gbs=4)
    with pytest.raises(ConfigError, match=r"amp-memory=on: nothing feasible .* 0.125 of 0.1 GB"):
        AMP(memory=True).plan(tight)


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=7),
    st.integers(1, 7),
)
def test_balanced_cuts_are_the_best_of_all(seconds: list[float], num_stages: int) -> None:
    n, num_stages = len(seconds), min(num_stages, len(seconds))

    def slowest(cuts: tuple[int, ...]) -> float:
        return max(sum(seconds[a:b]) for a, b in pairwise(cuts))

    cuts = balanced_cuts(seconds, num_stages)
    everything = [(0, *inner, n) for inner in combinations(range(1, n), num_stages - 1)]
    assert cuts in everything
    assert slowest(cuts) == pytest.approx(min(map(slowest, everything)))


@given(st.integers(1, 40), st.integers(1, 40))
def test_even_cuts_differ_by_one_layer(num_layers: int, num_stages: int) -> None:
    num_stages = min(num_layers, num_stages)
    cuts = even_cuts(num_layers, num_stages)
    sizes = [b - a for a, b in pairwise(cuts)]
    sizes[0] -= 1
    sizes[-1] -= 1
    assert (len(sizes), sum(sizes)) == (num_stages, num_layers)
    assert max(sizes) - min(sizes) <= 1
