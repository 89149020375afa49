"""Strategies in the order of their modelled time, with what a user wants to know about each.

Source: method.md 3 (crossing), 4 (exhaustive).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cona.cost import TimeModel
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques
from cona.surrogate import crossing_gns, throughput

PART_WORDS = {
    "compute": "compute",
    "recompute": "recomputation",
    "tp_comm": "tp all-reduce",
    "cp_comm": "cp exchange of keys and values",
    "pp_p2p": "pp send and receive",
    "bubble": "pipeline bubble",
    "dp_comm": "dp all-reduce",
    "optimizer": "optimizer step",
    "head": "LM head and loss",
    "launch": "waiting for kernel launches",
}
"""What each part of an iteration is called in sentences; the order is that of every table."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A feasible strategy and what the cost model says about it."""

    strategy: Strategy
    iteration_s: float
    """T in seconds per iteration."""
    parts_s: dict[str, float]
    """Named parts of T in seconds; they sum to T."""
    memory_bytes: float | None
    """Bytes on the fullest GPU; None if the model has no memory model."""
    origin: str = "model"
    """What T is: "model", "measured" or "scaled model" (of a table)."""

    @property
    def name(self) -> str:
        """The strategy's text form with the techniques that differ from the neutral ones."""
        return " ".join([str(self.strategy), *techniques_words(self.strategy.techniques)])

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return throughput(self.strategy.gbs, self.iteration_s)

    @property
    def bottleneck(self) -> str:
        """The largest part in words, e.g. ``dp all-reduce is 41 % of the iteration``."""
        part, seconds = max(self.parts_s.items(), key=lambda item: item[1])
        words = f"{part_words(part, self.strategy)} is {self._percent(seconds)} of the iteration"
        if part != "compute":
            return words
        rest = {name: s for name, s in self.parts_s.items() if name != part and s > 0}
        if not rest:
            return words
        second = max(rest, key=lambda name: rest[name])
        return f"{words}, then {part_words(second, self.strategy)} {self._percent(rest[second])}"

    def _percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.iteration_s:.0f} %"


@dataclass(frozen=True, kw_only=True)
class NextBatch:
    """When the next larger global batch makes more progress per second than this one."""

    gbs: int
    """The next larger global batch size, samples."""
    best: Ranked
    """Its fastest strategy."""
    gns: float
    """GNS* in samples: above it the larger batch wins; 0 always, infinity never."""

    @property
    def sentence(self) -> str:
        """The crossing in words."""
        if self.gns == 0:
            return f"gbs {self.gbs} wins at every GNS: it takes no longer"
        if self.gns == float("inf"):
            return f"gbs {self.gbs} wins at no GNS: it has no more samples per second"
        return f"gbs {self.gbs} wins above a GNS of {_samples(self.gns)} samples"


def _samples(gns: float) -> str:
    return f"{gns:,.0f}" if gns >= 100 else f"{gns:.3g}"


def part_words(part: str, strategy: Strategy) -> str:
    """Return what a part of the iteration is called: ZeRO does not all-reduce."""
    if part == "dp_comm" and strategy.techniques.zero_stage >= 1:
        return "dp reduce-scatter and all-gather"
    return PART_WORDS.get(part, part)


def techniques_words(techniques: Techniques) -> list[str]:
    """Return short words for the techniques that are in use."""
    words = {
        f"zero{techniques.zero_stage}": techniques.zero_stage > 0,
        f"recompute-{techniques.recompute}": techniques.recompute != "none",
        "sp": techniques.sequence_parallel,
        f"vpp{techniques.virtual_stages}": techniques.virtual_stages > 1,
        f"cp{techniques.context_parallel}": techniques.context_parallel > 1,
    }
    return [word for word, is_used in words.items() if is_used]


@runtime_checkable
class KnowsMemory(Protocol):
    """A model that predicts memory, a time model or the memory model beside one."""

    def memory_bytes(self, strategy: Strategy) -> float:
        """Return the bytes that the strategy needs on the fullest GPU."""


def memory_bytes(time_model: TimeModel, strategy: Strategy) -> float | None:
    """Return the bytes that a model predicts, itself or by its memory model; None: it does not."""
    for knows in (time_model, getattr(time_model, "memory", None)):
        if isinstance(knows, KnowsMemory):
            return knows.memory_bytes(strategy)
    return None


def rank(strategies: Sequence[Strategy], time_model: TimeModel, top: int) -> list[Ranked]:
    """Return the ``top`` fastest feasible strategies, fastest first.

    Args:
        strategies: candidates of one global batch size; on a tie the earlier one is first.
        time_model: what T is, and which strategies are feasible.
        top: how many to return at most.

    Raises:
        ConfigError: no candidate is feasible; the rule that most of them break is named.

    Source: method.md 4, ``exhaustive``
    """
    with suppress(ConfigError):  # a vectorised model learns them all in this one call
        time_model.times_s(strategies)
    reasons = {strategy: time_model.why_not(strategy) for strategy in strategies}
    feasible = [strategy for strategy, reason in reasons.items() if reason is None]
    if not feasible:
        raise ConfigError(_none_feasible(reasons))
    times_s = time_model.times_s(feasible)
    order = sorted(range(len(feasible)), key=lambda i: float(times_s[i]))[:top]
    return [_ranked(feasible[i], float(times_s[i]), time_model) for i in order]


def next_batch(best: Ranked, larger: Ranked) -> NextBatch:
    """Return where a larger global batch overtakes a smaller one.

    Args:
        best: the fastest strategy of the smaller global batch.
        larger: the fastest strategy of the larger one.

    Source: method.md 3, GNS*
    """
    gbs, gbs_next = best.strategy.gbs, larger.strategy.gbs
    gns = crossing_gns(gbs, best.iteration_s, gbs_next, larger.iteration_s)
    return NextBatch(gbs=gbs_next, best=larger, gns=gns)


def _ranked(strategy: Strategy, iteration_s: float, time_model: TimeModel) -> Ranked:
    return Ranked(
        strategy=strategy,
        iteration_s=iteration_s,
        parts_s=time_model.breakdown(strategy),
        memory_bytes=memory_bytes(time_model, strategy),
        origin=time_model.origin(strategy),
    )


def _none_feasible(reasons: dict[Strategy, str | None]) -> str:
    if not reasons:
        return "no strategy to choose from: no layout of the GPUs divides the model and the gbs"
    kinds = {strategy: re.sub(r"[\d.]+", "#", reason or "") for strategy, reason in reasons.items()}
    commonest, _ = Counter(kinds.values()).most_common(1)[0]
    strategy = next(s for s, kind in kinds.items() if kind == commonest)
    hint = "; so do ZeRO, recomputation and more GPUs" if "memory" in commonest else ""
    return f"none of {len(reasons)} strategies is feasible; {strategy}: {reasons[strategy]}{hint}"
