"""Process groups of a layout: made once, and used again whenever a run comes back to it.

Megatron keeps its groups in module globals and has no way back but to destroy them, which leaks
what they were made of; and it makes a group of its own for each of a dozen purposes, most of them
over the same ranks. Here every layout keeps its set, and equal ranks share one group in all of
them, but for the two ends of a tied embedding: they talk while the pipeline does. Source:
platform.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch.distributed as dist
from megatron.core import parallel_state

from cona.errors import ConfigError
from cona.strategy import Layout

RANK_ORDER = "tp-cp-ep-pp-dp"
"""Ranks are placed tp fastest, then pp, then dp: as ``cona.cost.state.Place`` has it."""


class GroupCache:
    """The process groups of one world, by layout; every rank must ask in the same order."""

    def __init__(self) -> None:
        self._groups: dict[tuple[bool, tuple[int, ...]], Any] = {}
        self._sets: dict[Layout, dict[str, Any]] = {}

    @property
    def num_groups(self) -> int:
        """Process groups that exist in this process, the world's own left out."""
        return len(self._groups)

    def activate(self, layout: Layout) -> None:
        """Make megatron use the groups of a layout, creating those that are missing.

        Raises:
            ConfigError: the layout has another number of ranks than the world.
        """
        if layout.num_gpus != (size := dist.get_world_size()):
            raise ConfigError(
                f"layout {layout} needs {layout.num_gpus} ranks, but {size} run together; choose "
                f"dp, tp and pp whose product is {size}"
            )
        if layout not in self._sets:
            self._sets[layout] = self._create(layout)
        vars(parallel_state).update(self._sets[layout])

    def _create(self, layout: Layout) -> dict[str, Any]:
        vars(parallel_state).update(_UNSET)
        with self._shared_groups():
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=layout.tp,
                pipeline_model_parallel_size=layout.pp,
                order=RANK_ORDER,
                create_gloo_process_groups=False,
            )
        return {name: vars(parallel_state)[name] for name in _UNSET}

    @contextlib.contextmanager
    def _shared_groups(self) -> Iterator[None]:
        """Let megatron take a group that exists already instead of making an equal one."""
        create = parallel_state.create_group

        def cached(ranks: list[int], **options: Any) -> Any:
            is_for_embedding = "EMBEDDING" in str(options.get("group_desc"))
            key = (is_for_embedding, tuple(ranks))
            if key not in self._groups:
                self._groups[key] = create(ranks, **options)
            return self._groups[key]

        with mock.patch.object(parallel_state, "create_group", cached):
            yield


def _globals_of_parallel_state() -> dict[str, Any]:
    """Return megatron's module globals as they are before any group exists."""
    return {
        name: value
        for name, value in vars(parallel_state).items()
        if name.startswith("_") and not name.startswith("__") and not callable(value)
    }


_UNSET = _globals_of_parallel_state()
