"""What-if: by hand on a table of times, and the command on recorded runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from problems import DP4, PP4, TABLE, TableTimes, tiny_cluster, tiny_model, tiny_tier

import cona.replay.whatif
import cona.scene
from cona import cli, config
from cona.cli.whatif import clusters
from cona.cost import SwitchCost
from cona.errors import ConfigError
from cona.replay.trace import RecordedStep, Recording
from cona.replay.whatif import Fixed, Outcome, Recorded, Size, outcome_of, retimed_s, size_of, sized
from cona.runner import run
from cona.scene import Scene
from cona.setup import RunRequest
from cona.specs import ClusterSpec
from cona.strategy import Strategy


def recorded(gns: Iterable[float], gbs: int = 8, **tier_changes: Any) -> Recorded:
    """Return a run at one batch size whose noise scales are known exactly."""
    steps = tuple(
        RecordedStep(samples=gbs * i, gbs=gbs, terms=None, gns=g, gns_low=g)
        for i, g in enumerate(gns, start=1)
    )
    return Recorded(
        model="tiny",
        seed=0,
        policy="cona",
        tier=tiny_tier(cluster="tiny-cluster", **tier_changes),
        recording=Recording(steps=steps),
    )


def times(monkeypatch: pytest.MonkeyPatch, table: dict[tuple[str, int], float]) -> None:
    for module in (cona.scene, cona.replay.whatif):
        monkeypatch.setattr(module, "time_model", lambda *_: TableTimes(table))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return the tiny model on four GPUs, priced by `TABLE` in truth and in belief."""
    times(monkeypatch, TABLE)
    model, cluster = tiny_model(), tiny_cluster()
    return Scene(
        tier=tiny_tier(clock={"switch_cost": "zero"}),
        trained_model=model,
        model=model,
        cluster=cluster,
        reference=TableTimes(TABLE),
        switch_cost=SwitchCost(model, cluster),
    )


# --- by hand --------------------------------------------------------------------------------------

STEADY = [24.0] * 100
"""At gbs 8 an iteration progresses 8/(8 + 24) = 1/4 noiseless step: 25 in all."""


def test_an_outcome_by_hand(scene: Scene) -> None:
    # A noiseless step takes (B + 24)/B iterations: 4 at gbs 8, 2.5 at 16, 1.75 at 32.
    found = outcome_of(recorded(STEADY), scene, "cona-cost=off")
    assert found.end_steps == pytest.approx(25)
    fixed = {one.strategy.gbs: one.seconds for one in found.fixed}
    assert fixed == pytest.approx({8: 100 * 0.2, 16: 62.5 * 0.3, 32: 43.75 * 0.45})
    assert str(found.best_fixed.strategy) == f"{PP4}-mbs1-gbs16"
    # After two iterations (0.4 s, half a step) R = 2/3 * 2 * 32/40 = 1.07 for 16, more than for 32;
    # the other 24.5 steps take 61.25 iterations.
    assert [(s.strategy.gbs, s.samples) for s in found.chain] == [(8, 0), (16, 16)]
    assert found.chain_s == pytest.approx(0.4 + 61.25 * 0.3)
    assert found.ratio == pytest.approx(18.75 / 18.775)
    assert found.recorded_s == pytest.approx(20.0)


def test_rising_noise_makes_chaining_pay(scene: Scene) -> None:
    # Little noise first (small batches win), then much (large ones do); 25 steps each.
    noise = [4.0] * 37 + [400.0] * 1275
    found = outcome_of(recorded(noise), scene, "cona-cost=off")
    assert found.ratio is not None
    assert found.ratio > 1
    assert found.chain[0].strategy.gbs == 8
    assert found.chain[-1].strategy.gbs == 32


def test_recorded_batch_sizes_are_timed_anew(scene: Scene) -> None:
    assert retimed_s(scene, [8, 8, 32, 32, 32]) == pytest.approx(2 * 0.2 + 3 * 0.45)
    live = scene.under(tiny_tier())
    ends = (Strategy.parse(f"{PP4}-mbs1-gbs8"), Strategy.parse(f"{DP4}-mbs1-gbs32"))
    switch_s = scene.switch_cost.seconds(*ends, "live")
    assert switch_s > 0.5
    assert retimed_s(live, [8, 8, 32]) == pytest.approx(2 * 0.2 + 0.45 + switch_s)
    assert retimed_s(live, [8, 64]) is None


NOISE = st.lists(st.floats(0.5, 500.0), min_size=20, max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(NOISE, st.sampled_from([8, 16, 32]))
@example([1, 2, 3, 10, 25, 64, 67, 99, 145, 62, 12, 92, 275] + [500.0] * 7, 32)  # just in time
def test_a_chain_that_never_switches_is_a_fixed_strategy(
    scene: Scene, noise: list[float], gbs: int
) -> None:
    found = outcome_of(recorded(noise), scene, f"fixed-best-gbs{gbs}")
    fixed = {one.strategy.gbs: one.seconds for one in found.fixed}
    assert len(found.chain) == 1
    if found.chain_s is None:
        assert fixed[gbs] > fixed[8]  # its budget is the smallest batch's time
    else:
        assert found.chain_s == pytest.approx(fixed[gbs])
        assert found.ratio is not None
        assert found.ratio <= 1 + 1e-9


# --- a cluster ------------------------------------------------------------------------------------


def test_batch_sizes_that_cannot_use_the_gpus_are_named(
    toy_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_8 = {key: s for key, s in TABLE.items() if key[1] > 8} | {(DP4, 64): 0.7}
    times(monkeypatch, without_8)
    found = size_of([recorded(STEADY)], tiny_cluster(), "cona")
    assert found.unusable == (8,)
    assert found.outcomes[0].rungs == (16, 32, 64)
    assert found.outcomes[0].recorded_s is None
    assert found.outcomes[0].chain[0].strategy.gbs == 16


def test_a_cluster_that_cannot_run_says_why(
    toy_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, {})
    found = size_of([recorded(STEADY)], tiny_cluster(), "cona")
    assert found.unusable == (8, 16, 32)
    assert (found.outcomes, found.pays) == ((), None)
    assert found.why_none is not None
    assert "feasible under table" in found.why_none


@pytest.mark.parametrize(
    ("chains_s", "pays"),
    [([9.0, 8.0], True), ([11.0, 10.0], False), ([9.0, 11.0], None), ([9.0, None], None)],
)
def test_it_pays_if_it_does_for_every_seed(chains_s: list[float | None], pays: bool | None) -> None:
    fixed = Fixed(strategy=Strategy.parse(f"{PP4}-mbs1-gbs8"), seconds=10.0)
    outcomes = tuple(
        Outcome(
            seed=i, rungs=(8,), chain=(), chain_s=s, fixed=(fixed,), recorded_s=None, end_steps=1.0
        )
        for i, s in enumerate(chains_s)
    )
    assert Size(cluster=tiny_cluster(), unusable=(), outcomes=outcomes).pays is pays


def test_sizes_double_and_are_whole_nodes() -> None:
    dgx = config.load(ClusterSpec, "dgx-h100")
    assert [c.num_gpus for c in clusters("dgx-h100", None)] == [8 * 2**i for i in range(10)]
    assert [c.name for c in clusters("dgx-h100", "16..40")] == ["dgx-h100@2", "dgx-h100@4"]
    assert [c.num_gpus for c in clusters("dgx-h100@3", None)] == [24]
    assert clusters("dgx2-v100", None)[0].num_gpus == 16
    assert sized(dgx, 64).num_nodes == 8
    with pytest.raises(ConfigError, match=r"12 GPUs are no whole number of nodes.*nearest: 16"):
        sized(dgx, 12)


@pytest.mark.parametrize("text", ["", "8..", "0..8", "16..8", "many", "-8"])
def test_another_form_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected N or FROM\.\.TO"):
        clusters("dgx-h100", text)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def results(toy_runs: Path, small_corpus: str) -> Path:
    """Return results with two seeds of the tiny model under `cona`, trained by the toy engine."""
    tier = tiny_tier(
        cluster="tiny-cluster", data={"corpus": small_corpus}, budget={"iterations": 60}
    )
    for seed in (0, 1):
        run(RunRequest(tier=tier, model="tiny", policy="cona", seed=seed, results=toy_runs))
    return toy_runs


def call(*words: str) -> Any:
    return CliRunner().invoke(cli.main, ["whatif", *words])


def test_the_command_has_a_row_for_every_size_and_a_range_over_seeds(results: Path) -> None:
    words = ["--runs", str(results), "--cluster", "tiny-cluster", "--gpus", "2..8"]
    answer = call(*words, "--json")
    assert answer.exit_code == 0, answer.output
    content = json.loads(answer.stdout)
    assert (content["policy"], content["clock"]) == ("cona", "modelled")
    (model,) = content["models"]
    assert (model["model"], model["tier"], model["time_source"]) == ("tiny", "tiny", "improved")
    assert [size["num_gpus"] for size in model["sizes"]] == [2, 4, 8]
    for size in model["sizes"]:
        assert [one["seed"] for one in size["seeds"]] == [0, 1]
        for one in size["seeds"]:
            assert one["num_switches"] == len(one["chain"]) - 1
            assert one["best_fixed_s"] == min(one["fixed_s"].values())
    text = call(*words)
    assert text.exit_code == 0, text.output
    assert max(map(len, text.stdout.splitlines())) <= 100
    assert "noise of cona, tier tiny, seed 0, 1" in text.stdout
    assert "All seconds are modelled" in text.stdout


def test_a_run_is_named_by_its_directory(results: Path) -> None:
    folder = results / "tiny" / "tiny" / "cona" / "seed1"
    answer = call("--runs", str(folder), "--cluster", "tiny-cluster", "--json", "--gpus", "4")
    (model,) = json.loads(answer.stdout)["models"]
    assert [one["seed"] for one in model["sizes"][0]["seeds"]] == [1]


def test_what_is_missing_is_one_sentence(results: Path, tmp_path: Path) -> None:
    where = ["--cluster", "tiny-cluster"]
    other = call("--runs", str(results), *where, "--recorded", "rampup")
    assert other.exit_code == 1
    assert "no finished run of 'rampup'; --recorded may be cona" in other.output
    (tmp_path / "empty").mkdir()
    none = call("--runs", str(tmp_path / "empty"), *where)
    assert none.exit_code == 1
    assert "no finished run; start one" in none.output
    nowhere = call("--runs", str(tmp_path / "nowhere"), *where)
    assert nowhere.exit_code == 2
    assert "there is no such folder" in nowhere.output
    ahead = call("--runs", str(results), *where, "--policy", "greedy-oracle")
    assert ahead.exit_code == 2
    assert "looks ahead" in ahead.output


def test_two_tiers_are_not_mixed(results: Path) -> None:
    shutil.copytree(results / "tiny", results / "copy")
    answer = call("--runs", str(results), "--cluster", "tiny-cluster")
    assert answer.exit_code == 2
    assert "both hold runs of tiny; name one of them: --runs" in answer.output
