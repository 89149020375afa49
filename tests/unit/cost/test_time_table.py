"""The table clock: what was measured is returned as it is, the rest is scaled to its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cost_cases import GPT, ONE_NODE, PAPER, cluster_spec, ladder_strategies, model_spec, strategy
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import time_model
from cona.cost.table import TimeTable, table_path
from cona.cost.table_rows import measured
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques

CALCULON = time_model("calculon+head", GPT, PAPER)
FEASIBLE = [s for s in ladder_strategies(GPT) if CALCULON.why_not(s) is None]
SOME = st.lists(st.sampled_from(FEASIBLE), min_size=1, max_size=12, unique=True)
RATIOS = st.floats(0.25, 4.0)


class Seconds:
    """A model that prices every strategy at one second, but knows nothing of tp > 2."""

    name = "seconds"

    def time_s(self, strategy: Strategy) -> float:
        return 1.0

    def times_s(self, strategies: Sequence[Strategy]) -> np.ndarray:
        return np.ones(len(strategies))

    def breakdown(self, strategy: Strategy) -> dict[str, float]:
        return {"compute": 0.75, "dp_comm": 0.25}

    def why_not(self, strategy: Strategy) -> str | None:
        return "tp is above 2" if strategy.tp > 2 else None

    def origin(self, strategy: Strategy) -> str:
        return "model"


def table(measured_s: dict[Strategy, float]) -> TimeTable:
    return TimeTable("table:test", measured_s, Seconds())


# --- by hand --------------------------------------------------------------------------------------


def test_two_neighbours_by_hand() -> None:
    # log2(mbs) is 1 away from mbs 1 (ratio 2) and 2 away from mbs 8 (ratio 4): weights 1 and 1/4,
    # mean of log2 ratios (1 + 2/4)/(1 + 1/4) = 1.2
    times = table({strategy(1, 1, 1, 1, 64): 2.0, strategy(1, 1, 1, 8, 64): 4.0})
    assert times.time_s(strategy(1, 1, 1, 2, 64)) == pytest.approx(2**1.2, rel=1e-12)
    assert times.origin(strategy(1, 1, 1, 2, 64)) == "scaled model"
    assert times.origin(strategy(1, 1, 1, 8, 64)) == "measured"


def test_every_axis_counts_alike() -> None:
    far, near = strategy(2, 2, 2, 4, 64), strategy(4, 1, 1, 2, 64)
    times = table({far: 3.0, near: 5.0})
    # from dp4-tp1-pp2-mbs2-gbs128: far differs in dp, tp, mbs, gbs (4), near in pp, gbs (2)
    expected = math.exp((math.log(3) / 4 + math.log(5) / 2) / (1 / 4 + 1 / 2))
    assert times.time_s(strategy(4, 1, 2, 2, 128)) == pytest.approx(expected, rel=1e-12)


def test_only_the_nearest_four_count_and_all_that_tie_with_the_fourth() -> None:
    mbs = {m: strategy(1, 1, 1, m, 1024) for m in (1, 2, 4, 8, 16, 32, 64)}
    near = {mbs[m]: 2.0 for m in (2, 4, 16, 32)}  # 2, 1, 1 and 2 away from mbs 8
    with_far = table(near | {mbs[1]: 50.0})
    assert with_far.time_s(mbs[8]) == pytest.approx(2.0, rel=1e-12)
    tied = table(
        {mbs[m]: t for m, t in ((4, 2.0), (16, 2.0), (2, 3.0), (32, 5.0), (1, 7.0))}
        | {mbs[64]: 7.0}
    )
    # 1 away: weight 1 each; 2 away: 1/4 each; mbs 1 and 64, 3 away, do not count
    logs = 2 * math.log(2) + (math.log(3) + math.log(5)) / 4
    assert tied.time_s(mbs[8]) == pytest.approx(math.exp(logs / 2.5), rel=1e-12)
    wide = table(
        {strategy(1, 1, 1, 8, gbs): 2.0 for gbs in (512, 2048)}
        | {mbs[4]: 2.0, mbs[16]: 2.0, strategy(1, 1, 2, 8, 1024): 8.0}
    )
    assert wide.time_s(mbs[8]) == pytest.approx(2 ** ((4 + 3) / 5), rel=1e-12)


def test_a_technique_that_differs_is_one_step_away() -> None:
    def with_mbs(mbs: int, **used: object) -> Strategy:
        techniques = Techniques(**used)  # type: ignore[arg-type]
        return Strategy(dp=1, tp=1, pp=1, mbs=mbs, gbs=64, techniques=techniques)

    times = table({with_mbs(1, recompute="full"): 2.0, with_mbs(2): 4.0})
    assert times.time_s(with_mbs(1)) == pytest.approx(2**1.5, rel=1e-12)
    assert times.origin(with_mbs(1)) == "scaled model"
    assert times.origin(with_mbs(1, recompute="full")) == "measured"


def test_what_the_model_calls_infeasible_was_measured_all_the_same() -> None:
    wide, other = strategy(1, 4, 1, 1, 64), strategy(1, 4, 1, 2, 64)
    times = table({wide: 3.0})
    assert times.why_not(wide) is None
    assert times.time_s(wide) == 3.0
    assert times.breakdown(wide) == {"measured": 3.0}
    assert times.why_not(other) == "tp is above 2"
    # it cannot scale the model, whose T for it is not known
    assert times.time_s(strategy(1, 1, 1, 1, 64)) == 1.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_must_be_a_time(seconds: float) -> None:
    with pytest.raises(ConfigError, match="dp1-tp1-pp1-mbs1-gbs64 takes .* must be above 0"):
        table({strategy(1, 1, 1, 1, 64): seconds})


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="no measured strategy"):
        table({})


# --- properties -----------------------------------------------------------------------------------


@given(SOME, st.data())
def test_measured_strategies_are_returned_as_measured(some: list[Strategy], data) -> None:
    measured = {s: CALCULON.time_s(s) * data.draw(RATIOS) for s in some}
    times = TimeTable("t", measured, CALCULON)
    for s, seconds in measured.items():
        assert times.time_s(s) == seconds


@given(SOME, RATIOS)
def test_a_model_that_errs_by_a_factor_is_corrected_everywhere(some, ratio: float) -> None:
    times = TimeTable("t", {s: CALCULON.time_s(s) * ratio for s in some}, CALCULON)
    assert times.times_s(FEASIBLE) == pytest.approx(ratio * CALCULON.times_s(FEASIBLE), rel=1e-9)


@given(SOME, st.data())
def test_a_scaled_time_lies_between_the_ratios_and_the_order_is_no_matter(some, data) -> None:
    one = data.draw(st.sampled_from([s for s in FEASIBLE if s not in some]))
    ratios = [data.draw(RATIOS) for _ in some]
    measured = {s: CALCULON.time_s(s) * r for s, r in zip(some, ratios, strict=True)}
    times = TimeTable("t", measured, CALCULON)
    factor = times.time_s(one) / CALCULON.time_s(one)
    assert min(ratios) * (1 - 1e-9) <= factor <= max(ratios) * (1 + 1e-9)
    shuffled = data.draw(st.permutations(list(measured.items())))
    again = TimeTable("t", dict(shuffled), CALCULON)
    assert again.time_s(one) == pytest.approx(times.time_s(one), rel=1e-9)


@given(SOME, st.sampled_from(FEASIBLE), RATIOS)
def test_the_breakdown_sums_to_the_time(some, one, ratio: float) -> None:
    times = TimeTable("t", {s: CALCULON.time_s(s) * ratio for s in some}, CALCULON)
    assert sum(times.breakdown(one).values()) == pytest.approx(times.time_s(one), rel=1e-9)


# --- from a CSV -----------------------------------------------------------------------------------

HEADER = "gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n"
SMALL = model_spec(num_layers=12, hidden_size=1024, ffn_size=4096)
ROWS = (
    "2,16,8,1024,16,12,1024,1,1,2,300\n"
    "2,16,8,1024,16,12,1024,1,1,2,320\n"
    "2,16,8,1024,16,12,1024,1,1,2,900\n"
    "2,16,4,1024,16,12,1024,1,2,1,200\n"
    "2,16,4,1024,16,24,1024,1,2,1,777\n"
)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + ROWS)
    return path


def test_rows_of_the_model_count_and_repeats_by_their_median(csv: Path) -> None:
    found = measured(csv, SMALL, ONE_NODE)
    assert found.profile == "megatron-deepspeed"
    assert found.times_s == {
        strategy(1, 1, 2, 8, 16): pytest.approx(0.32),
        strategy(2, 1, 1, 4, 16): pytest.approx(0.2),
    }


def test_the_time_source_is_registered(csv: Path) -> None:
    times = time_model(f"table:{csv}", SMALL, ONE_NODE)
    known, other = strategy(2, 1, 1, 4, 16), strategy(2, 1, 1, 2, 16)
    assert times.name == f"table:{csv}"
    assert times.time_s(known) == pytest.approx(0.2)
    assert times.origin(known) == "measured"
    assert times.origin(other) == "scaled model"
    assert times.model.profile == "megatron-deepspeed"  # type: ignore[union-attr]
    assert time_model("calculon", SMALL, ONE_NODE).origin(known) == "model"


def test_names_that_are_tables() -> None:
    assert table_path("table:a/b.csv") == Path("a/b.csv")
    assert table_path("calculon") is None


@pytest.mark.parametrize(
    ("model", "cluster", "differs"),
    [
        (model_spec(num_layers=13), ONE_NODE, "num_layers 12, hidden_size 1024, ffn_size 4096"),
        (SMALL, cluster_spec(num_nodes=1, gpus_per_node=8, gpu="h100-80g"), "gpu a100-80g"),
        (SMALL, cluster_spec(num_nodes=1, gpus_per_node=1), "gpus_per_node 8, num_gpus 2"),
        (SMALL, cluster_spec(num_nodes=2, gpus_per_node=1), "gpus_per_node 8"),
    ],
)
def test_without_a_row_of_the_model_the_nearest_is_told(csv, model, cluster, differs) -> None:
    # on two nodes of one GPU, the two GPUs of a row would not be in one node
    with pytest.raises(ConfigError, match="no row is of gpt3-1.3b.*the nearest differs in") as info:
        measured(csv, model, cluster)
    assert str(info.value).endswith(f"differs in {differs}")


def test_a_csv_without_times_is_refused(csv: Path) -> None:
    csv.write_text((HEADER + ROWS).replace("iteration_ms", "remark"))
    with pytest.raises(ConfigError, match="no column of times"):
        measured(csv, SMALL, ONE_NODE)


def test_a_missing_csv_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.csv: No such file"):
        time_model(f"table:{tmp_path / 'none.csv'}", SMALL, ONE_NODE)
