"""Where a chain of layers may be cut, and how many GPUs a stage may have.

Both bound the searches of planners with unequal stages.
"""

from __future__ import annotations


def submeshes(num_gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that a stage may have: powers of two in a node, or whole nodes.

    ASSUMED: of more than 8 nodes, a stage takes a power of two or all; see `smallest_stage` too.

    Args:
        num_gpus: GPUs in all.
        gpus_per_node: GPUs of a node.

    Source: Alpa (Zheng et al. 2022), section 5
    """
    node = min(num_gpus, gpus_per_node)
    num_nodes = num_gpus // node
    counts = range(1, num_nodes + 1) if num_nodes <= 8 else [*_powers(num_nodes), num_nodes]
    sizes = [*_powers(node), *(count * node for count in counts)]
    return tuple(size for size in sizes if size >= smallest_stage(num_gpus))


def _powers(below: int) -> list[int]:
    return [2**i for i in range(below.bit_length()) if 2**i < below]


def smallest_stage(num_gpus: int) -> int:
    """Return the fewest GPUs of a stage. ASSUMED: a 64th of all, to bound the search."""
    return -(-num_gpus // 64)


def cuts(num_layers: int, max_groups: int) -> tuple[int, ...]:
    """Return where a chain may be cut if layers move in groups, ends included.

    Args:
        num_layers: layers of the chain.
        max_groups: most groups; all but the last have the same size.
    """
    size = -(-num_layers // max_groups)
    return (*range(0, num_layers, size), num_layers)
