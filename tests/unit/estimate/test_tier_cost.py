"""What a tier takes: jobs and sums, for every tier and scale that is shipped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from cona import cli, config
from cona.estimate import TierCost, estimate
from cona.estimate.tier_cost import JOBS_AT_ONCE
from cona.pipeline import Pipeline
from cona.specs import ModelSpec, ScaleSpec, TierSpec

SHIPPED = [name for name in config.names(TierSpec) if name != "paper"]
TINY = "paper@tiny"


def cost_of(spec: str, **changes: object) -> TierCost:
    tier = config.override(config.load(TierSpec, spec), changes)
    return estimate(Pipeline(tier=tier, spec=spec, results="results"))


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(cli.main, ["estimate", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def tiny() -> TierCost:
    return cost_of(TINY)


def test_jobs_are_those_of_the_pipeline(tiny: TierCost) -> None:
    num_policies = len(tiny.tier.policies)
    for model in tiny.models:
        assert model.num_runs == num_policies
        assert model.num_jobs == 2  # the oracle's process and one for the rest
        assert model.num_turns == 2
    assert tiny.num_jobs == 3 * 2 + 3 + 4  # training, data, reports


def test_hours_are_seconds_times_what_a_job_has(tiny: TierCost) -> None:
    for model in tiny.models:
        hours = sum(model.seconds.values()) / 3600
        assert model.host_hours == pytest.approx(2 * hours)  # two nodes
        assert model.gpu_hours == 0.0  # CPU ranks
        assert model.gpu_memory_bytes is None
        assert model.host_memory_bytes == 2e9
        assert model.seconds["train"] == pytest.approx(model.num_runs * model.budget_s)
        assert model.seconds["start"] == 120.0
    assert tiny.host_hours == pytest.approx(sum(m.host_hours for m in tiny.models))
    assert tiny.disk_bytes == pytest.approx(sum(m.disk_bytes for m in tiny.models))


def test_the_disk_is_fullest_while_the_last_jobs_go_on(tiny: TierCost) -> None:
    for model in tiny.models:  # two jobs, each with two checkpoints more than it leaves
        checkpoint = model.dropped_bytes / 2
        spec = config.load(ModelSpec, model.model)
        assert checkpoint == pytest.approx(12 * spec.num_params, rel=0.2)
        assert model.peak_disk_bytes == model.disk_bytes + 2 * 2 * checkpoint
    assert tiny.peak_disk_bytes == pytest.approx(sum(m.peak_disk_bytes for m in tiny.models))


def test_no_more_jobs_run_at_once_than_the_profile_submits(tiny: TierCost) -> None:
    profile = yaml.safe_load((config.config_root().parent / "slurm/config.v8+.yaml").read_text())
    assert profile["jobs"] == JOBS_AT_ONCE
    many = [replace(model, num_jobs=80) for model in tiny.models]
    crowd = replace(tiny, models=tuple(many))
    most, second, _ = sorted((model.dropped_bytes for model in many), reverse=True)
    assert crowd.peak_disk_bytes == pytest.approx(crowd.disk_bytes + 80 * most + 20 * second)
    assert many[0].peak_disk_bytes == many[0].disk_bytes + 80 * many[0].dropped_bytes


def test_seeds_multiply_everything_but_the_budget(tiny: TierCost) -> None:
    thrice = cost_of(TINY, seeds=[0, 1, 2])
    for one, three in zip(tiny.models, thrice.models, strict=True):
        assert three.num_runs == 3 * one.num_runs
        assert three.host_hours == pytest.approx(3 * one.host_hours)
        assert three.disk_bytes == pytest.approx(3 * one.disk_bytes)
        assert three.budget_s == one.budget_s


def test_a_larger_cluster_is_faster_and_has_more_gpus() -> None:
    changes = {"policies": ["cona"], "seeds": [0], "models": ["gpt3-1.3b"]}
    small = cost_of("paper", **changes)
    large = cost_of("paper", **changes, cluster="dgx-h100")
    (one,), (other,) = small.models, large.models
    assert other.budget_s < one.budget_s
    assert (one.geometry.num_nodes, one.geometry.gpus_per_node) == (2, 2)
    assert (other.geometry.num_nodes, other.geometry.gpus_per_node) == (1, 8)
    # one run: its last checkpoint, 12 bytes per parameter
    assert one.disk_bytes == pytest.approx(12 * 1_315_557_376, rel=0.01)
    assert one.gpu_memory_bytes is not None
    assert 16 * 1.3e9 < one.gpu_memory_bytes < 80e9


def test_runs_that_share_a_trajectory_are_trained_once() -> None:
    policies = ["fixed-best-gbs8", "alpa-gbs8", "amp-gbs8"]
    three, one = cost_of("smoke", policies=policies), cost_of("smoke", policies=policies[:1])
    assert three.models[0].seconds["train"] == one.models[0].seconds["train"]
    assert three.num_runs == 3


def test_a_long_job_takes_turns() -> None:
    changes = {"policies": ["cona"], "seeds": [0], "models": ["gpt3-1.3b"]}
    limits = {"jobs.runtime_min": 20, "jobs.save_s": 300}
    (model,) = cost_of("paper", **changes, **limits).models
    usable_s = 60 * 20 - 300 - 60
    own_s = sum(model.seconds.values()) - model.seconds["start"]
    assert model.num_turns == -(-own_s // usable_s) > 1
    assert model.seconds["start"] == 60 * model.num_turns


@pytest.mark.parametrize("spec", [*SHIPPED, *(f"smoke@{s}" for s in config.names(ScaleSpec))])
def test_the_table_fits_a_terminal(spec: str) -> None:
    text = invoke("--tier", spec)
    assert max(map(len, text.splitlines())) <= 100
    assert "modelled by improved" in text
    assert "Assumed:" in text


def test_json_says_the_same() -> None:
    content = json.loads(invoke("--tier", "paper", "--scale", "tiny", "--json"))
    assert content["tier"] == "paper-tiny"
    assert content["num_jobs"] == cost_of(TINY).num_jobs
    assert content["peak_disk_bytes"] > content["disk_bytes"]
    assert content["host_hours"] == pytest.approx(sum(m["host_hours"] for m in content["models"]))
    ahead = content["models"][0]["look_ahead"]["greedy-oracle"]
    # two decisions and one after the last iteration, each a fork for three batch sizes
    assert ahead["num_probes"] == 12
    assert 5 < ahead["multiplier"] < 6.5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tier", "papr"], "unknown tier 'papr': did you mean 'paper'?"),
        (["--tier", "paper", "--scale", "tinny"], "unknown scale 'tinny': did you mean 'tiny'?"),
        (["--cluster", "dgx-h10"], "unknown cluster 'dgx-h10': did you mean 'dgx-h100'?"),
    ],
)
def test_a_wrong_name_is_one_sentence(arguments: list[str], sentence: str) -> None:
    failed = CliRunner().invoke(cli.main, ["estimate", *arguments])
    assert failed.exit_code == 2
    assert failed.stderr.splitlines() == [f"Error: {sentence}"]
