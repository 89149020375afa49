"""What jobs ask SLURM for: hand-computed for each kind of job, and true of all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona import config
from cona.errors import ConfigError
from cona.resources import Geometry, memory_mb, training_job
from cona.specs import ClusterSpec, JobSpec, ModelSpec, TierSpec

SMALL = config.load(ModelSpec, "gpt3-1.3b-proxy")
LARGE = config.load(ModelSpec, "gpt3-1.3b")

geometries = st.builds(
    Geometry,
    num_nodes=st.integers(1, 64),
    ranks_per_node=st.integers(1, 16),
    gpus_per_node=st.integers(0, 16),
)
limits = st.builds(
    JobSpec,
    runtime_min=st.integers(62, 10_000),
    save_s=st.integers(1, 3600),
    memory_gb=st.none() | st.floats(0.5, 500),
    cpus_per_rank=st.integers(1, 64),
)


def job(num_nodes: int, ranks: int, gpus: int, **limits: Any) -> dict[str, int | str]:
    geometry = Geometry(num_nodes=num_nodes, ranks_per_node=ranks, gpus_per_node=gpus)
    return training_job(geometry, JobSpec(memory_gb=4, **limits), SMALL)


def test_the_modelled_clock_needs_one_core_and_no_gpu() -> None:
    assert job(1, 1, 0, runtime_min=60, save_s=90) == {
        "runtime": 60,
        "mem_mb": 4000,
        "slurm_extra": "--signal=USR1@90 --open-mode=append",
        "cpus_per_task": 1,
    }


def test_one_node_is_one_task_that_starts_all_ranks() -> None:
    resources = job(1, 4, 4, cpus_per_rank=8)
    assert resources["gres"] == "gpu:4"
    assert resources["cpus_per_task"] == 32
    assert resources["mem_mb"] == 16_000
    assert not {"nodes", "tasks", "tasks_per_node", "mpi"} & set(resources)


def test_several_nodes_are_a_task_per_rank() -> None:
    resources = job(2, 4, 4, cpus_per_rank=8)
    wanted = {"nodes": 2, "tasks_per_node": 4, "mpi": "srun", "cpus_per_task": 8, "gres": "gpu:4"}
    assert resources.items() >= wanted.items()
    assert resources["mem_mb"] == 16_000  # of a node


def test_nodes_of_one_gpu_count_tasks_in_all() -> None:
    """Snakemake's plugin refuses tasks_per_node = 1."""
    resources = job(4, 1, 1)
    assert resources.items() >= {"nodes": 4, "tasks": 4, "tasks_per_gpu": 0, "mpi": "srun"}.items()
    assert "tasks_per_node" not in resources


@given(geometry=geometries, limits=limits)
def test_every_rank_gets_its_share(geometry: Geometry, limits: JobSpec) -> None:
    resources = training_job(geometry, limits, SMALL)
    nodes = int(resources.get("nodes", 1))
    tasks = int(resources.get("tasks", nodes * int(resources.get("tasks_per_node", 1))))
    num_ranks = geometry.num_nodes * geometry.ranks_per_node
    assert nodes == geometry.num_nodes
    assert tasks * int(resources["cpus_per_task"]) == num_ranks * limits.cpus_per_rank
    assert resources["mem_mb"] == memory_mb(limits, SMALL) * geometry.ranks_per_node
    assert ("mpi" in resources) == (nodes > 1) == bool(geometry.srun_options)
    assert resources.get("gres") == (
        (geometry.gpus_per_node and f"gpu:{geometry.gpus_per_node}") or None
    )


def test_memory_follows_the_model_unless_the_tier_says() -> None:
    # 2 GB, and twice 16 bytes for each of 1,314,... million parameters
    assert memory_mb(JobSpec(), LARGE) == 2000 + round(32 * LARGE.num_params / 1e6)
    assert 40_000 < memory_mb(JobSpec(), LARGE) < 50_000
    assert memory_mb(JobSpec(), SMALL) < 2100
    assert memory_mb(JobSpec(memory_gb=1.5), LARGE) == 1500


@pytest.mark.parametrize(
    ("runtime_min", "save_s", "nearest"),
    [(10, 481, "save_s 480"), (2, 1, "runtime_min 3, save_s 60"), (1, 300, "runtime_min 3")],
)
def test_a_job_has_time_to_train(runtime_min: int, save_s: int, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"jobs.save_s {save_s} leaves .* nearest: {nearest}"):
        config.validate(JobSpec, {"runtime_min": runtime_min, "save_s": save_s}, where="mine.yaml")
    assert JobSpec(runtime_min=10, save_s=480).save_s == 480


def test_geometry_of_a_tier() -> None:
    tier = config.load(TierSpec, "quick")
    cluster = config.load(ClusterSpec, "dgx-a100@2")
    assert Geometry.of(tier, cluster) == Geometry(num_nodes=1, ranks_per_node=1, gpus_per_node=0)
    measured = tier.model_copy(update={"clock": tier.clock.model_copy(update={"kind": "measured"})})
    real = Geometry.of(measured, cluster)
    assert real == Geometry(num_nodes=2, ranks_per_node=8, gpus_per_node=8)
    assert real.srun_options == "--nodes=2 --ntasks-per-node=8"
    processes = cluster.model_copy(update={"gpu": "cpu"})
    assert Geometry.of(measured, processes).gpus_per_node == 0


@pytest.mark.parametrize("name", config.names(TierSpec))
def test_limits_change_no_result(name: str) -> None:
    """A finished run stays finished when it would be given more time or memory."""
    from cona.pipeline import Pipeline

    tier = config.load(TierSpec, name)
    other = config.override(tier, {"jobs.runtime_min": 30, "jobs.memory_gb": 3, "jobs.gpus": 2})
    one, two = (Pipeline(tier=t, spec=name, results="results") for t in (tier, other))
    assert {one.fingerprint(m) for m in tier.models} == {two.fingerprint(m) for m in tier.models}
