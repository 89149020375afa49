"""How a batch is cut into micro-batches and spread over replicas."""

from __future__ import annotations

from collections.abc import Iterator

from cona.engine.base import Batch
from cona.engine.megatron import split_batch
from cona.errors import ConfigError


def micro_batches(batch: Batch, dp: int, exec_mbs: int) -> list[Batch]:
    """Cut a batch for all replicas; a lone micro-batch is split in two, so that it can be measured.

    Args:
        batch: B samples.
        dp: number of replicas.
        exec_mbs: samples per micro-batch.

    Raises:
        ConfigError: dp * exec_mbs does not divide the batch.
    """
    multiple = dp * exec_mbs
    if len(batch) % multiple:
        nearest = max(1, round(len(batch) / multiple)) * multiple
        raise ConfigError(
            f"a batch of {len(batch)} samples does not divide into micro-batches of {exec_mbs} on "
            f"{dp} replicas; nearest batch: {nearest}"
        )
    is_alone = len(batch) == exec_mbs
    return split_batch(batch, exec_mbs // 2 if is_alone and exec_mbs % 2 == 0 else exec_mbs)


def share(parts: list[Batch], dp: int, replica: int) -> list[Batch]:
    """Return a replica's micro-batches: the replicas' shares follow each other."""
    count = len(parts) // dp
    return parts[replica * count : (replica + 1) * count]


def evaluation_share(batch: Batch, dp: int, replica: int, most: int) -> Iterator[Batch]:
    """Yield a replica's share of a batch of any size, at most ``most`` samples at a time."""
    first, last = (len(batch) * d // dp for d in (replica, replica + 1))
    for start in range(first, last, most):
        yield batch[start : min(start + most, last)]
