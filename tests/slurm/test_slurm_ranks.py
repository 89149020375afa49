"""The paper tier on real ranks through `snakemake --profile slurm`: two nodes of two, one node."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from slurm_runs import ROOT, Cluster, wait_until

from cona import config
from cona.specs import TierSpec

MODEL = "gpt3-1.3b-proxy"
TINY = yaml.safe_load((ROOT / "config" / "scales" / "tiny.yaml").read_text())
DEEPSPEED = "cona-paper-engine=deepspeed"
SHORT = ("greedy-oracle", "cona", "fixed-best-gbs8", DEEPSPEED)


def write_scale(folder: Path, **settings: object) -> None:
    """Write scale.yaml: the scale `tiny` with other settings."""
    scale = {**TINY, "name": "short", "settings": {**TINY["settings"], **settings}}
    (folder / "scale.yaml").write_text(yaml.safe_dump(scale))


@dataclass(frozen=True)
class Trained:
    """Runs of the paper tier at some scale, trained by SLURM's jobs."""

    folder: Path
    tier: TierSpec
    output: str

    @property
    def results(self) -> Path:
        return self.folder / "results" / self.tier.name

    def result(self, model: str, policy: str) -> dict[str, Any]:
        text = (self.results / model / policy / "seed0" / "result.json").read_text()
        content: dict[str, Any] = json.loads(text)
        return content


def train(cluster: Cluster, folder: Path, scale: str, seconds: float) -> Trained:
    """Run the pipeline, few jobs at a time: each has four ranks, and there may be two cores."""
    process = cluster.snakemake(folder, "--jobs", "2", tier="paper", scale=scale)
    code = process.wait(timeout=seconds)
    output = (folder / "snakemake.txt").read_text()
    assert code == 0, output
    name = scale if scale == TINY["name"] else str(folder / scale)
    return Trained(folder, config.load(TierSpec, f"paper@{name}"), output)


def check(cluster: Cluster, trained: Trained) -> None:
    """Check jobs, results and tables of all models and policies."""
    tier = trained.tier
    jobs = {what: (state, nodes) for what, state, nodes in jobs_of(cluster, trained)}
    assert set(jobs.values()) <= {("COMPLETED", "1"), ("COMPLETED", "2")}
    for model in tier.models:
        for rule in ("train_greedy_oracle", "train_policies"):
            assert jobs[f"rule_{rule}_wildcards_{model}_0"] == ("COMPLETED", "2")
    assert len(jobs) == 3 * len(tier.models) + 4  # its data and two trainings; four reports
    for model in tier.models:
        for policy in tier.policies:
            check_result(trained.result(model, policy), policy)
    with (trained.results / "tables" / "ttp.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["model"], row["policy"]) for row in rows} == {
        (model, policy) for model in tier.models for policy in tier.policies
    }
    assert cluster.cona(trained.folder, "jobs") == "0 runs worked on\n0 SLURM jobs, no orphans\n"


def jobs_of(cluster: Cluster, trained: Trained) -> list[list[str]]:
    return cluster.jobs(trained.folder, "%k|%T|%D")


def check_result(result: dict[str, Any], policy: str) -> None:
    """Four ranks trained it, and its seconds are theirs."""
    clock = result["clock"]
    assert result["status"] == "finished"
    assert clock["kind"] == "measured"
    assert clock["cluster"] == "local-cpu-2x2"
    assert clock["hardware"]["num_ranks"] == 4
    assert clock["hardware"]["backend"] == "gloo"
    assert clock["engine"]["kind"] == ("deepspeed" if policy == DEEPSPEED else "megatron")
    assert result["samples"] > 0
    assert result["train_s"] >= 0.5 * result["time_budget_s"]


@pytest.fixture(scope="module")
def short(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("ranks").resolve()
    oracle = {"decisions": 1, "forks": "neighbours"}
    write_scale(folder, models=[MODEL], policies=list(SHORT), oracle=oracle)
    return train(cluster, folder, "scale.yaml", 900)


def test_the_paper_tier_runs_on_two_nodes_of_two_ranks(cluster: Cluster, short: Trained) -> None:
    check(cluster, short)


def test_it_gives_no_verdict(short: Trained) -> None:
    assert not short.tier.gives_verdicts
    assert short.tier.name == "paper-short"


@pytest.mark.slow
def test_scale_tiny_trains_three_families(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    trained = train(cluster, folder, "tiny", 5400)
    assert len(trained.tier.models) == 3
    check(cluster, trained)
    estimate = json.loads(
        cluster.cona(folder, "estimate", "--tier", "paper", "--scale", "tiny", "--json")
    )
    files = [path for path in trained.results.glob("*/*/seed0/**/*") if path.is_file()]
    used_bytes = sum(path.stat().st_size for path in files)
    assert used_bytes <= estimate["disk_bytes"] <= 3 * used_bytes


@pytest.mark.slow
def test_on_one_node_ranks_save_before_a_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """There is no srun step there: the signal goes through the launcher."""
    folder, policy = tmp_path.resolve(), "fixed-best-gbs8"
    one_node = {"cluster": "local-cpu-2x2@1", "budget": {"iterations": 48, "seconds": 30}}
    write_scale(folder, models=[MODEL], policies=[policy], **one_node)
    process = cluster.snakemake(folder, "--jobs", "1", tier="paper", scale="scale.yaml")
    run = folder / "results" / "paper-short" / MODEL / policy / "seed0"
    record = run / "measured.jsonl"
    wait_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, 600)
    job = cluster.running(folder, "train_policies")
    assert job is not None
    cluster.do("scancel", "--signal=USR1", job)
    assert process.wait(timeout=900) == 0, (folder / "snakemake.txt").read_text()
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events == ["started", "ended early", "resumed", "finished"]  # no work was repeated
    (number,) = {n for n, what in cluster.jobs(folder, "%i|%k") if "train_policies" in what}
    assert number == job  # it came back under its own id
