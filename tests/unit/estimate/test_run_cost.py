"""What one run takes, by hand: three batch sizes of 1, 1.25 and 2 seconds on one layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import DP4, TableTimes, tiny_cluster, tiny_model, tiny_tier

from baselines.oracle import GreedyOracle
from cona.cost import SwitchCost
from cona.errors import ConfigError, PolicyError
from cona.estimate.look_ahead import LookAhead, looks_ahead, most_look_ahead
from cona.estimate.run_cost import FOLDER_BYTES, LINE_BYTES, ProcessCosts, RankCosts, RunCosts
from cona.scene import Scene
from cona.specs import OracleSpec

TIMES = {(DP4, 8): 1.0, (DP4, 16): 1.25, (DP4, 32): 2.0}
STATE_BYTES = 12 * tiny_model().num_params + 200_000
ONE = "dp1-tp1-pp1"


def scene(times: dict[tuple[str, int], float] = TIMES, **tier: object) -> Scene:
    """Return twenty seconds of training on four GPUs; an evaluation every 32 samples."""
    settings = {"budget": {"iterations": 20}, "oracle": OracleSpec(decisions=2)}
    model, cluster = tiny_model(), tiny_cluster()
    return Scene(
        tier=tiny_tier(**(settings | tier)),
        trained_model=model,
        model=model,
        cluster=cluster,
        reference=TableTimes(times),
        switch_cost=SwitchCost(model, cluster),
    )


def process_costs(**tier: object) -> RunCosts:
    """Return the costs of one process with a GPU that trains ten samples a second."""
    costs = ProcessCosts(scene(jobs={"gpus": 1}, **tier))
    costs.__dict__["_host"] = TableTimes({(ONE, 8): 0.8, (ONE, 16): 1.6, (ONE, 32): 3.2})
    return costs


# --- looking ahead --------------------------------------------------------------------------------


def test_the_oracle_forks_at_the_start_in_the_middle_and_at_the_end() -> None:
    # An interval is 10 s: 10, 8 and 5 iterations of 8, 16 and 32 samples; three forks each time.
    found = most_look_ahead("greedy-oracle", scene())
    assert found == LookAhead(
        train_s=3 * 3 * 10.0, switch_s=0.0, samples=3 * (80 + 128 + 160), num_probes=3 * 4
    )


def test_neighbours_are_fewer_forks_at_the_ends_of_the_ladder() -> None:
    # At the start all three; then {8, 16}, {8, 16, 32} or {16, 32}: most where 16 wins.
    neighbours = OracleSpec(decisions=2, forks="neighbours")
    found = most_look_ahead("greedy-oracle", scene(oracle=neighbours))
    assert found.num_probes == 3 * 4
    assert found.train_s == 90.0


def test_two_intervals_ahead_are_nine_forks_of_two() -> None:
    found = most_look_ahead("greedy-oracle-lookahead2", scene())
    assert found.num_probes == 3 * (1 + 9)
    assert found.train_s == 3 * 9 * 20.0


def test_changes_of_layout_are_counted_there_and_back() -> None:
    other = "dp2-tp1-pp2"
    times = {(DP4, 8): 1.0, (other, 16): 1.25}
    found = most_look_ahead("greedy-oracle", scene(times, ladder={"gbs_min": 8, "gbs_max": 16}))
    # Whichever wins, the other one's forks go there and back: two switches of more than half a
    # second at two of three decisions; at the start there is no layout to come from.
    assert found.switch_s > 2 * 2 * 0.5
    assert found.switch_s < 2 * 2 * 0.51


def test_a_policy_that_fails_while_it_is_played_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GreedyOracle, "decide", lambda self, observation: 1 // 0)
    with pytest.raises(PolicyError, match=r"'greedy-oracle': decide\(\) at sample 8 failed: Zero"):
        most_look_ahead("greedy-oracle", scene())


@pytest.mark.parametrize(
    ("policy", "answer"),
    [("greedy-oracle-charged=on", True), ("merrill", True), ("cona", False), ("rampup", False)],
)
def test_who_looks_ahead(policy: str, answer: bool) -> None:
    assert looks_ahead(policy) is answer


# --- on ranks -------------------------------------------------------------------------------------


def test_a_fixed_batch_is_priced_as_itself() -> None:
    cost = RankCosts(scene(clock={"kind": "measured"})).run("fixed-best-gbs8")
    assert cost.train_s == 20.0
    assert cost.look_ahead_s == 0.0
    # 160 samples: evaluations at 0, 32, ..., 160 and once at the end, of 4 samples of 1/8 s / 4
    assert cost.evaluation_s == pytest.approx(7 * 4 * 0.125 / 4)
    assert cost.checkpoint_s == pytest.approx(2 * STATE_BYTES / 1e9)
    assert cost.disk_bytes == STATE_BYTES + FOLDER_BYTES + 20 * LINE_BYTES


def test_an_unknown_course_is_priced_where_it_takes_most() -> None:
    cost = RankCosts(scene(clock={"kind": "measured"})).run("cona")
    assert cost.train_s == 20.0
    # 320 samples at gbs 32 pass five points of 64
    assert cost.checkpoint_s == pytest.approx(5 * STATE_BYTES / 1e9)
    assert cost.evaluation_s == pytest.approx(7 * 4 * 0.125 / 4)  # beats 12 * 4 * 0.0625 / 4
    assert cost.disk_bytes == STATE_BYTES + FOLDER_BYTES + 20 * LINE_BYTES


def test_a_run_without_a_checkpoint_leaves_its_logs_alone() -> None:
    rare = scene(clock={"kind": "measured"}, snapshot_interval_samples=321)  # it ends at 320
    assert RankCosts(rare).run("cona").disk_bytes == FOLDER_BYTES + 20 * LINE_BYTES


@pytest.mark.parametrize(("interval", "dropped"), [(64, 2), (128, 1), (192, 0), (321, 0)])
def test_a_run_has_three_checkpoints_while_it_writes_the_third(interval: int, dropped: int) -> None:
    # 320 samples: five, two, one or no checkpoints, of which the last one stays
    costs = RankCosts(scene(clock={"kind": "measured"}, snapshot_interval_samples=interval))
    assert costs.run("cona").dropped_bytes == dropped * STATE_BYTES


def test_the_oracle_takes_its_forks_too() -> None:
    costs = RankCosts(scene(clock={"kind": "measured"}))
    cost = costs.run("greedy-oracle")
    assert cost.look_ahead_s == pytest.approx(90 + 12 * 4 * 0.125 / 4)
    assert cost.num_probes == 12
    assert cost.total_s == pytest.approx(
        20 + cost.look_ahead_s + cost.evaluation_s + cost.checkpoint_s
    )


# --- in one process -------------------------------------------------------------------------------


def test_a_process_trains_what_the_clock_allows_at_its_own_pace() -> None:
    costs = process_costs()
    assert costs.run("fixed-best-gbs8").train_s == pytest.approx(16.0)  # 160 samples
    assert costs.run("cona").train_s == pytest.approx(32.0)  # 320 samples at gbs 32
    oracle = costs.run("greedy-oracle")
    assert oracle.look_ahead_s == pytest.approx(1104 / 10 + 12 * 4 / 10 / 4)
    # 5 snapshots of the run, 17 of 1,104 samples in forks
    assert oracle.disk_bytes == 22 * STATE_BYTES + FOLDER_BYTES + 10 * LINE_BYTES


def test_a_process_without_a_gpu_has_a_core() -> None:
    model = tiny_model()
    flops = 160 * 6 * model.num_params * model.seq_length
    costs = ProcessCosts(scene())
    assert costs.run("fixed-best-gbs8").train_s == pytest.approx(flops / 15e9)
    assert costs.memory_bytes is None


def test_snapshots_that_are_not_kept_take_no_disk() -> None:
    cost = process_costs(snapshots_kept=1).run("cona")
    # One in each segment, at most one segment for each batch size; 16 has the longer log then.
    assert cost.disk_bytes == 3 * STATE_BYTES + FOLDER_BYTES + 16 * LINE_BYTES
    assert cost.dropped_bytes == STATE_BYTES  # the old one goes after the new one
    assert process_costs().run("cona").dropped_bytes == 0  # all are kept


def test_runs_of_one_batch_size_share_what_they_train() -> None:
    costs = process_costs()
    assert costs.shared("fixed-best-gbs8") == costs.shared("alpa-gbs8")
    assert costs.shared("fixed-best-gbs8") != costs.shared("fixed-best-gbs16")
    assert costs.shared("cona") is None
    again = costs.reread("alpa-gbs8")
    assert again.total_s == 0.0
    assert again.disk_bytes == FOLDER_BYTES + 20 * LINE_BYTES


def test_ranks_share_nothing() -> None:
    assert RankCosts(scene(clock={"kind": "measured"})).shared("fixed-best-gbs8") is None


# --- always ---------------------------------------------------------------------------------------


@given(decisions=st.none() | st.integers(1, 20), forks=st.sampled_from(["ladder", "neighbours"]))
def test_whatever_the_oracle_tries_it_trains_more_than_its_run(
    decisions: int | None, forks: str
) -> None:
    found = most_look_ahead(
        "greedy-oracle", scene(oracle=OracleSpec(decisions=decisions, forks=forks))
    )
    assert found.train_s >= 20.0
    assert found.num_probes >= 4
    assert found.switch_s == 0.0


def test_nothing_that_fits_is_said() -> None:
    with pytest.raises(ConfigError, match="feasible"):
        RankCosts(scene({}))
