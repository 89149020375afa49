"""Strategies s = (dp, tp, pp, mbs, gbs) and the rules that say which of them exist.

Source: method.md 1. Every divisibility rule of the project lives in this file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from cona.errors import ConfigError, shown

if TYPE_CHECKING:
    from cona.specs import LadderSpec, ModelSpec

LARGEST_DEGREE = 2**17
"""Of a technique: no cluster has more GPUs."""

_STRATEGY = re.compile(r"dp(\d+)-tp(\d+)-pp(\d+)-mbs(\d+)-gbs(\d+)")


@dataclass(frozen=True, kw_only=True, order=True)
class Layout:
    """How a model is spread over GPUs: data, tensor and pipeline parallel degrees."""

    dp: int
    """Data-parallel degree: number of model replicas."""
    tp: int
    """Tensor-parallel degree: GPUs that share each weight matrix."""
    pp: int
    """Pipeline-parallel degree: number of stages."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs that the layout occupies."""
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        return f"dp{self.dp}-tp{self.tp}-pp{self.pp}"


Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, kw_only=True, order=True)
class Techniques:
    """What a strategy may use beside its degrees; every default is neutral."""

    zero_stage: int = 0
    """ZeRO: 0 none, 1 shards the optimizer, 2 gradients too, 3 weights too."""
    recompute: Recompute = "none"
    """Activations computed again in the backward pass: none, attention only, all."""
    sequence_parallel: bool = False
    """Shard norms and dropout over the tensor-parallel ranks."""
    virtual_stages: int = 1
    """Interleaved pipeline: model chunks per GPU."""
    context_parallel: int = 1
    """Context-parallel degree: GPUs that share each sequence."""

    def __post_init__(self) -> None:
        if not 0 <= self.zero_stage <= 3:
            raise ConfigError(f"zero_stage {self.zero_stage}: must be 0, 1, 2 or 3")
        if self.recompute not in get_args(Recompute):
            valid = ", ".join(get_args(Recompute))
            raise ConfigError(f"recompute '{self.recompute}': valid: {valid}")
        for name in ("virtual_stages", "context_parallel"):
            if not 1 <= getattr(self, name) <= LARGEST_DEGREE:
                raise ConfigError(
                    f"{name} = {shown(getattr(self, name))}: must be between 1 and {LARGEST_DEGREE}"
                )


@dataclass(frozen=True, kw_only=True, order=True)
class Strategy:
    """A parallelism strategy: a layout, its micro-batch size and the global batch size."""

    dp: int
    tp: int
    pp: int
    mbs: int
    """Micro-batch size: samples that one replica processes at once."""
    gbs: int
    """Global batch size: samples per optimizer step, over all replicas."""
    techniques: Techniques = Techniques()
    """What it uses beside its degrees; not part of its text form."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "mbs", "gbs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.gbs % (self.dp * self.mbs):
            below = self.gbs // (self.dp * self.mbs) * self.dp * self.mbs
            raise ConfigError(
                f"gbs {self.gbs} is not divisible by dp*mbs = {self.dp}*{self.mbs}; "
                f"nearest: {below or self.dp * self.mbs}"
            )

    @property
    def layout(self) -> Layout:
        """The strategy without its batch sizes."""
        return Layout(dp=self.dp, tp=self.tp, pp=self.pp)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs that the strategy occupies."""
        return self.dp * self.tp * self.pp * self.techniques.context_parallel

    @property
    def num_microbatches(self) -> int:
        """m = gbs/(dp*mbs): micro-batches per pipeline and iteration."""
        return self.gbs // (self.dp * self.mbs)

    def __str__(self) -> str:
        return f"{self.layout}-mbs{self.mbs}-gbs{self.gbs}"

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """Read a strategy from its text form, e.g. ``dp2-tp1-pp2-mbs4-gbs64``.

        Raises:
            ConfigError: the text has another form, or the sizes do not divide.
        """
        match = _STRATEGY.fullmatch(text)
        if not match:
            raise ConfigError(f"strategy '{text}': expected a form like dp2-tp1-pp2-mbs4-gbs64")
        dp, tp, pp, mbs, gbs = map(int, match.groups())
        return cls(dp=dp, tp=tp, pp=pp, mbs=mbs, gbs=gbs)


def divisors(number: int, largest: int | None = None) -> list[int]:
    """Return the divisors of ``number``, or those up to a largest one, ascending."""
    limit = number if largest is None else largest
    small = [d for d in range(1, min(math.isqrt(number), limit) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small if number // d <= limit)})


def exec_mbs(gbs: int, largest: int) -> int:
    """Return the micro-batch that a virtual cluster really executes for a global batch.

    It is the largest divisor of ``gbs`` that leaves at least two micro-batches (the gradient
    noise scale needs two) and is at most ``largest``. It depends on nothing else, so that the
    noise scale belongs to the trajectory and not to the layout that the clock accounts.

    Args:
        gbs: global batch size, samples.
        largest: cap on the micro-batch, samples.
    """
    if gbs == 1:
        return 1
    return max(divisors(gbs, min(largest, gbs // 2)))


@dataclass(frozen=True, kw_only=True)
class StrategySpace:
    """S(gbs): every strategy that a model, a number of GPUs and a ladder allow.

    Memory is judged elsewhere (``cona.cost``); this class knows divisibility only.
    """

    model: ModelSpec
    num_gpus: int
    ladder: LadderSpec
    techniques: Techniques = Techniques()
    """Given to every strategy."""
    has_pipelines: bool = True
    """Whether what trains can split the layers into stages."""

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout of ``num_gpus`` GPUs that the model divides into."""
        found = (
            Layout(dp=self._num_shares // (tp * pp), tp=tp, pp=pp)
            for tp in divisors(self._num_shares)
            for pp in divisors(self._num_shares // tp)
        )
        return tuple(layout for layout in found if self.why_not_layout(layout) is None)

    @property
    def _num_shares(self) -> int:
        """GPUs for dp*tp*pp: each share of them holds one part of every sequence."""
        return self.num_gpus // self.techniques.context_parallel

    @property
    def why_empty(self) -> str | None:
        """Why no layout can exist, whatever the model: cp must share the GPUs evenly; or None."""
        degree = self.techniques.context_parallel
        if self.num_gpus % degree == 0:
            return None
        valid = min(divisors(self.num_gpus), key=lambda d: abs(d - degree))
        return (
            f"context_parallel {degree} does not divide the {self.num_gpus} GPUs; nearest: {valid}"
        )

    def why_not_layout(self, layout: Layout) -> str | None:
        """Return the rule that a layout breaks, or None if it breaks none."""
        if self.why_empty:
            return self.why_empty
        if layout.num_gpus != self._num_shares:
            return f"dp*tp*pp = {layout.num_gpus} is not the number of GPUs, {self._num_shares}"
        shared = {
            "hidden_size": self.model.hidden_size,
            "num_heads": self.model.num_heads,
            "num_kv_heads": self.model.num_kv_heads,
            "ffn_size": self.model.ffn_size,
            "padded_vocab_size": self.model.padded_vocab_size,
        }
        for name, value in shared.items():
            if value % layout.tp:
                return f"{name} {value} is not divisible by tp {layout.tp}"
        if layout.pp > 1 and not self.has_pipelines:
            return f"pp {layout.pp}: the engine has no pipeline parallelism; valid: 1"
        if self.model.num_layers % layout.pp:
            return f"num_layers {self.model.num_layers} is not divisible by pp {layout.pp}"
        return None

    def why_not(self, strategy: Strategy) -> str | None:
        """Return the rule that a strategy breaks, or None if it is in S(gbs)."""
        if strategy.mbs > self.ladder.mbs_max:
            return f"mbs {strategy.mbs} exceeds mbs_max {self.ladder.mbs_max}"
        return self.why_not_layout(strategy.layout)

    def at(self, gbs: int) -> tuple[Strategy, ...]:
        """Return S(gbs) in a fixed order: by tp, then pp, then mbs."""
        return tuple(self._at(gbs))

    def _at(self, gbs: int) -> Iterator[Strategy]:
        for layout in self.layouts:
            if gbs % layout.dp:
                continue
            for mbs in divisors(gbs // layout.dp, self.ladder.mbs_max):
                yield Strategy(
                    dp=layout.dp,
                    tp=layout.tp,
                    pp=layout.pp,
                    mbs=mbs,
                    gbs=gbs,
                    techniques=self.techniques,
                )
