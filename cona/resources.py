"""What a training job asks SLURM for.

One process on the modelled clock; on the measured clock one rank per GPU of the tier's cluster: on
one node it starts its ranks itself, on several `slurm/launch` starts them. The names are those of
Snakemake's resources for SLURM.
"""

from __future__ import annotations

from dataclasses import dataclass

from cona.specs import ClusterSpec, JobSpec, ModelSpec, TierSpec

BASE_GB = 2.0
"""Host memory of a process beside the model, GB. ASSUMED; 0.5 GB were measured without a GPU."""
STATE_BYTES_PER_PARAM = 16
"""fp32 weight, gradient and the two moments of Adam."""
NUM_STATE_COPIES = 2
"""The state itself and the copy that is written to a checkpoint. ASSUMED: both on the host."""

Resources = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Where the ranks of a job are, and what each of them gets."""

    num_nodes: int
    ranks_per_node: int
    gpus_per_node: int

    @classmethod
    def of(cls, tier: TierSpec, cluster: ClusterSpec) -> Geometry:
        """Return the geometry of a tier's training jobs.

        Args:
            tier: whose clock says whether there are ranks.
            cluster: the tier's; its GPUs are the ranks of the measured clock.
        """
        if tier.clock.kind == "modelled":
            return cls(num_nodes=1, ranks_per_node=1, gpus_per_node=tier.jobs.gpus)
        ranks = cluster.gpus_per_node
        gpus = 0 if cluster.gpu == "cpu" else ranks
        return cls(num_nodes=cluster.num_nodes, ranks_per_node=ranks, gpus_per_node=gpus)

    @property
    def srun_options(self) -> str:
        """Options of srun that make these ranks; none on one node, where it starts one process."""
        if self.num_nodes == 1:
            return ""
        return f"--nodes={self.num_nodes} --ntasks-per-node={self.ranks_per_node}"


def training_job(geometry: Geometry, job: JobSpec, model: ModelSpec) -> Resources:
    """Return Snakemake's resources of a training job.

    Args:
        geometry: nodes and ranks of the job.
        job: the tier's limits.
        model: what is trained; its size gives the memory unless the tier does.
    """
    return {
        "runtime": job.runtime_min,
        "mem_mb": memory_mb(job, model) * geometry.ranks_per_node,
        # The signal is for the ranks, not for the batch shell, which would not know what to do. A
        # requeued job would begin its log anew.
        "slurm_extra": f"--signal=USR1@{job.save_s} --open-mode=append",
        **_placement(geometry, job),
    }


def _placement(geometry: Geometry, job: JobSpec) -> Resources:
    """Nodes, tasks, CPUs and GPUs; one node must not name tasks, several must.

    Where SLURM counts tasks, a task's CPUs are a rank's; else the only task starts all ranks.
    """
    gpus: Resources = {"gres": f"gpu:{geometry.gpus_per_node}"} if geometry.gpus_per_node else {}
    if geometry.num_nodes == 1:
        return {"cpus_per_task": job.cpus_per_rank * geometry.ranks_per_node, **gpus}
    tasks: Resources = {"tasks_per_node": geometry.ranks_per_node}
    if geometry.ranks_per_node == 1:  # Snakemake's plugin refuses a single task per node,
        # and takes `tasks` for tasks per GPU unless those are given, which 0 does.
        tasks = {"tasks": geometry.num_nodes, "tasks_per_gpu": 0}
    return {
        "nodes": geometry.num_nodes,
        "mpi": "srun",
        "cpus_per_task": job.cpus_per_rank,
        **tasks,
        **gpus,
    }


def memory_mb(job: JobSpec, model: ModelSpec) -> int:
    """Return the host memory of a rank in MB (1e6 bytes).

    Args:
        job: the tier's limits.
        model: what is trained.
    """
    state_gb = STATE_BYTES_PER_PARAM * NUM_STATE_COPIES * model.num_params / 1e9
    return round(1000 * (job.memory_gb or BASE_GB + state_gb))
