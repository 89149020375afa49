"""How GPUs may be divided into groups, one for each pipeline stage.

Source: Metis (Um et al. 2024), device groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice


def device_groups(
    num_gpus: int, num_stages: int, *, least_share: float, max_orders: int
) -> Iterator[tuple[int, ...]]:
    """Yield how GPUs may be divided into stages: powers of two, or equal groups of any size.

    Args:
        num_gpus: GPUs in all.
        num_stages: groups.
        least_share: of num_gpus // num_stages that a group has at least.
        max_orders: how many orders of the same groups are yielded.
    """
    share = num_gpus // num_stages
    least = max(1.0, share * least_share)
    sizes = {2**i for i in range(num_gpus.bit_length())}
    if num_gpus % num_stages == 0:
        sizes.add(share)
    usable = sorted(size for size in sizes if size >= least)
    for groups in _sums(num_gpus, num_stages, usable):
        yield from islice(_orders(groups), max_orders)


def _sums(total: int, count: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ascending groups of the sizes that add up."""
    if count == 0:
        if total == 0:
            yield ()
        return
    for i, size in enumerate(sizes):
        if size * count > total:
            return
        for rest in _sums(total - size, count - 1, sizes[i:]):
            yield (size, *rest)


def _orders(groups: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Distinct orders of groups, the smallest first in front."""
    if not groups:
        yield ()
    for size in sorted(set(groups)):
        at = groups.index(size)
        for rest in _orders((*groups[:at], *groups[at + 1 :])):
            yield (size, *rest)
