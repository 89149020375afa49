"""sum k_i/K |g_i|^2 over the micro-batches of one iteration, on one rank of a parallel run.

A hook on every parameter sees the gradient of one micro-batch before it is added to those of the
others, so nothing is stored and no collective waits. Each parameter is counted once over all ranks:
one that tensor parallelism replicates on its first rank, a tied embedding on the first stage.
Source: method.md 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from cona.engine import cpu

SUM_DTYPE = torch.float64


class GradientStatistics:
    """Square norms of micro-batch gradients of one rank's parameters.

    Args:
        parameters: the rank's parameters by name.
        counted: names of those that this rank counts.
        tied: the two ends of a tied embedding if they are on different stages and this rank holds
            one of them.
        tp_group: the tensor-parallel group, for parameters whose gradient sequence parallelism
            splits over it.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        counted: set[str],
        tied: TiedEmbedding | None,
        tp_group: Any,
    ) -> None:
        self._tied, self._tp_group = tied, tp_group
        self._is_on = False
        self._sums = torch.zeros(0)
        self._weights: Tensor = torch.zeros(0)
        self._split: dict[int, list[Tensor]] = {}
        self._counts: dict[str, int] = {}
        self._handles = [
            parameter.register_hook(self._hook(name, parameter, name in counted))
            for name, parameter in parameters.items()
            if name in counted or self._needs_exchange(name, parameter)
        ]

    def _needs_exchange(self, name: str, parameter: nn.Parameter) -> bool:
        is_tied = self._tied is not None and name == self._tied.name
        return is_tied or getattr(parameter, "sequence_parallel", False)

    def start(self, token_counts: Sequence[int], samples: Sequence[NDArray[np.int64]]) -> None:
        """Begin an iteration.

        Args:
            token_counts: k_i, predicted tokens of each micro-batch of this replica.
            samples: token ids of each micro-batch, shapes [mbs, seq].
        """
        self._is_on = True
        self._counts, self._split = {}, {}
        # A micro-batch that predicts nothing has no gradient, and weight 0.
        self._weights = torch.tensor([1 / k if k else 0.0 for k in token_counts], dtype=SUM_DTYPE)
        # On the device: the hooks must not wait for it.
        self._sums = torch.zeros(len(token_counts), dtype=SUM_DTYPE, device=cpu.device())
        if self._tied is not None:
            self._tied.start(samples)

    def finish(self, num_tokens: int, scale: float) -> float:
        """Return this rank's part of sum k_i/K |g_i|^2; all ranks' parts add up to the whole.

        Args:
            num_tokens: K, predicted tokens of the whole batch.
            scale: factor by which the loss was multiplied (loss scale).
        """
        self._is_on = False
        if self._tied is not None:
            self._tied.finish()
        self._add_split()
        # Hooks saw k_i/K g_i, times the scale.
        return float((self._sums.cpu() * self._weights).sum()) * num_tokens / scale**2

    def close(self) -> None:
        """Remove the hooks; a module that goes must not be held by them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, name: str, parameter: nn.Parameter, counts: bool) -> Any:
        is_tied = self._tied is not None and name == self._tied.name
        is_split = getattr(parameter, "sequence_parallel", False)

        def see(gradient: Tensor) -> None:
            if not self._is_on:
                return
            index = self._counts.get(name, 0)
            self._counts[name] = index + 1
            if is_split:
                self._split.setdefault(index, []).append(gradient.detach().float().flatten())
                return
            if counts or is_tied:
                # Row by row: over ten million elements at once torch's CPU norm is off by 1e-3.
                norms = torch.linalg.vector_norm(gradient.detach(), dim=-1, dtype=torch.float32)
                self._sums[index] += norms.to(SUM_DTYPE).square().sum()
            if is_tied and self._tied is not None:
                self._sums[index] += self._tied.cross_term(gradient.detach(), index)

        return see

    def _add_split(self) -> None:
        """Add the parameters whose gradient is spread over tensor-parallel ranks as a sum."""
        if not self._split:
            return
        rows = torch.stack([torch.cat(self._split[i]) for i in range(len(self._sums))])
        dist.all_reduce(rows, group=self._tp_group)
        if dist.get_rank(self._tp_group) == 0:
            self._sums += rows.to(SUM_DTYPE).square().sum(1)


class TiedEmbedding:
    """The two copies of a tied embedding: |a + b|^2 = |a|^2 + |b|^2 + 2ab, sending little of b.

    The first stage's gradient a is zero except in the rows of the tokens that the micro-batch
    looked up, so the last stage sends only those rows of its own gradient b.

    Args:
        name: of the parameter on this rank.
        is_first: whether this rank is on the first stage.
        peer: global rank that holds the other copy of the same rows.
        first_row: token id of the slice's first row.
        num_rows: rows of the slice.
        group: process group of the two.
    """

    def __init__(
        self, *, name: str, is_first: bool, peer: int, first_row: int, num_rows: int, group: Any
    ) -> None:
        self.name = name
        self._is_first, self._peer, self._group = is_first, peer, group
        self._first_row, self._num_rows = first_row, num_rows
        self._rows: list[Tensor] = []
        self._sent: list[tuple[Any, Tensor]] = []

    def start(self, samples: Sequence[NDArray[np.int64]]) -> None:
        """Note which rows of the slice each micro-batch looks up."""
        self._rows = [self._rows_of(tokens) for tokens in samples]

    def _rows_of(self, tokens: NDArray[np.int64]) -> Tensor:
        rows = np.unique(tokens) - self._first_row
        return torch.from_numpy(rows[(rows >= 0) & (rows < self._num_rows)])

    def cross_term(self, gradient: Tensor, index: int) -> Tensor | float:
        """Return 2ab on the first stage, 0 on the last, which sends the rows of b.

        Args:
            gradient: shape [num_rows, hidden].
            index: of the micro-batch.
        """
        rows = self._rows[index].to(gradient.device)
        if not len(rows):
            return 0.0
        mine = gradient[rows]
        if not self._is_first:
            self._sent.append((dist.isend(mine, self._peer, group=self._group), mine))
            return 0.0
        theirs = torch.empty_like(mine)
        dist.recv(theirs, self._peer, group=self._group)
        return 2 * (mine.float() * theirs.float()).sum().to(SUM_DTYPE)

    def finish(self) -> None:
        """Wait until everything that was sent has arrived."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []
