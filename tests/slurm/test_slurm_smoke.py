"""The smoke tier through `snakemake --profile slurm`: real jobs, and the bytes of a local run."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_runs import ROOT, Cluster

MODEL = "gpt3-1.3b-proxy"
POLICIES = ("cona", "fixed-best-gbs8")


@dataclass(frozen=True)
class Trained:
    """The smoke tier, trained by SLURM's jobs and in this machine's own processes."""

    folder: Path
    output: str

    def files(self, name: str, results: str) -> list[bytes]:
        runs = (self.folder / results / "smoke" / MODEL / policy for policy in POLICIES)
        return [(run / "seed0" / name).read_bytes() for run in runs]


@pytest.fixture(scope="module")
def trained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("slurm").resolve()
    process = cluster.snakemake(folder, tier="smoke")
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    cluster.cona(folder, "run", "--model", MODEL, "--tier", "smoke", "--out", "local", *policies)
    code = process.wait(timeout=600)
    output = (folder / "snakemake.txt").read_text()
    assert code == 0, output
    return Trained(folder, output)


def test_every_rule_was_a_job_of_slurm(cluster: Cluster, trained: Trained) -> None:
    states = dict(cluster.jobs(trained.folder, "%k|%T"))
    assert states == {
        f"rule_data_wildcards_{MODEL}": "COMPLETED",
        f"rule_train_policies_wildcards_{MODEL}_0": "COMPLETED",
        "rule_planners": "COMPLETED",
        "rule_tables": "COMPLETED",
        "rule_figures": "COMPLETED",
        "rule_report": "COMPLETED",
    }
    assert trained.output.count("has been submitted with SLURM jobid") == len(states)


def test_a_job_asked_for_what_the_tier_says(cluster: Cluster, trained: Trained) -> None:
    asked = {comment: rest for comment, *rest in cluster.jobs(trained.folder, "%k|%l|%C|%D|%b")}
    (training,) = (rest for comment, rest in asked.items() if "train_policies" in comment)
    assert training == ["4:00:00", "1", "1", "N/A"]  # limit, CPUs, nodes, GPUs


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_its_files_are_those_of_a_local_run(trained: Trained, name: str) -> None:
    assert trained.files(name, "results") == trained.files(name, "local")


def test_the_tables_stand_at_the_end(trained: Trained) -> None:
    with (trained.folder / "results" / "smoke" / "tables" / "ttp.csv").open() as file:
        assert {row["policy"] for row in csv.DictReader(file)} == set(POLICIES)


def test_nobody_is_left(cluster: Cluster, trained: Trained) -> None:
    assert cluster.cona(trained.folder, "jobs") == "0 runs worked on\n0 SLURM jobs, no orphans\n"


def test_again_submits_nothing(cluster: Cluster, trained: Trained) -> None:
    before = len(cluster.jobs(trained.folder, "%i"))
    assert cluster.snakemake(trained.folder, tier="smoke").wait(timeout=120) == 0
    assert "Nothing to be done" in (trained.folder / "snakemake.txt").read_text()
    assert len(cluster.jobs(trained.folder, "%i")) == before


RANKS = """
from cona import config
from cona.resources import Geometry, training_job
from cona.specs import JobSpec, ModelSpec

GEOMETRY = Geometry(num_nodes=2, ranks_per_node=2, gpus_per_node=2)
MODEL = config.load(ModelSpec, "gpt3-1.3b-proxy")
LAUNCH = f"{LAUNCH} {GEOMETRY.srun_options} -- "

rule ranks:
    output: "ranks.txt"
    resources: **training_job(GEOMETRY, JobSpec(), MODEL)
    shell: LAUNCH + "bash tell.sh > {output}"
"""
TELL = """
echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURMD_NODENAME $MASTER_ADDR $CUDA_VISIBLE_DEVICES
"""


def test_several_nodes_are_ranks_that_can_meet(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(f"LAUNCH = '{ROOT}/slurm/launch'" + RANKS)
    (tmp_path / "tell.sh").write_text(TELL)
    process = cluster.snakemake(tmp_path, snakefile=tmp_path / "Snakefile", any="thing")
    assert process.wait(timeout=300) == 0, (tmp_path / "snakemake.txt").read_text()
    ranks = sorted(line.split() for line in (tmp_path / "ranks.txt").read_text().splitlines())
    assert [rank[:2] for rank in ranks] == [["0/4", "0"], ["1/4", "1"], ["2/4", "0"], ["3/4", "1"]]
    nodes = [rank[2] for rank in ranks]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert {rank[3] for rank in ranks} == {"127.0.0.1"}
    assert {rank[4] for rank in ranks} == {"0,1"}
