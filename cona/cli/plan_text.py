"""What `cona plan` prints: tables for people, JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cona.cli.terminal import Cells, json_text, table
from cona.cost.ranking import PART_WORDS, NextBatch, Ranked
from cona.planning import Rung
from cona.specs import ClusterSpec, ModelSpec

HEAD = ("#", "strategy", "s", "samples/s", "GB/GPU", "what takes longest")
DROP = ("GB/GPU", "samples/s")
"""Columns that a narrow terminal does without."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a plan is about, said with every answer."""

    model: ModelSpec
    cluster: ClusterSpec
    preset: str
    """The cost model that says what a second is."""
    is_calibrated: bool | None
    """Its constants were fitted to the GPU type (True) or are a data sheet's; None: it has none."""

    @property
    def title(self) -> str:
        """One line for tables and captions."""
        model, cluster = self.model, self.cluster
        doubt = f", uncalibrated for {cluster.gpu}" if self.is_calibrated is False else ""
        return (
            f"{model.name} ({model.num_params / 1e9:.2f}B parameters, seq {model.seq_length}) on "
            f"{cluster.name} ({cluster.num_gpus} x {cluster.gpu}); "
            f"seconds are modelled by {self.preset}{doubt}"
        )

    def fields(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "model": self.model.name,
            "seq_length": self.model.seq_length,
            "cluster": self.cluster.name,
            "num_gpus": self.cluster.num_gpus,
            "preset": self.preset,
            "calibrated": self.is_calibrated,
            "clock": "modelled",
        }


def top(about: About, rung: Rung) -> str:
    """Return the ranked strategies of one global batch size: times, breakdown, what limits."""
    ranked = rung.ranked
    parts = [p for p in PART_WORDS if any(one.parts_s.get(p, 0.0) > 0 for one in ranked)]
    times = [
        (str(i), one.name, *_figures(one), _remark(one)) for i, one in enumerate(ranked, start=1)
    ]
    shares = [(str(i), *(_percent(one, p) for p in parts)) for i, one in enumerate(ranked, start=1)]
    blocks = [
        about.title,
        table(HEAD, times, drop=DROP),
        "Breakdown in % of the iteration:",
        table(("#", *parts), shares),
    ]
    if rung.next:
        blocks.append(f"Next: {rung.next.sentence} ({rung.next.best.name}).")
    return "\n\n".join(blocks)


def ladder(about: About, rungs: Sequence[Rung]) -> str:
    """Return the best strategy of each global batch size and when the next one wins."""
    head = ("gbs", *HEAD[1:], "next")
    lines = [_ladder_cells(rung) for rung in rungs]
    return f"{about.title}\n\n{table(head, lines, drop=DROP)}"


def as_json(about: About, rungs: Sequence[Rung]) -> str:
    """Return a plan as JSON; "never" and "always" are words, never numbers."""
    content = about.fields() | {
        "rungs": [
            {
                "gbs": rung.gbs,
                "strategies": [_fields(one) for one in rung.ranked],
                "why_none": rung.why_none,
                "next": rung.next and _next_fields(rung.next),
            }
            for rung in rungs
        ],
    }
    return json_text(content)


def _figures(one: Ranked) -> tuple[str, str, str]:
    memory = "-" if one.memory_bytes is None else f"{one.memory_bytes / 1e9:.1f}"
    return f"{one.iteration_s:.4g}", _rate(one.samples_per_s), memory


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


def _remark(one: Ranked) -> str:
    """What takes longest, and where T is no model's: what it is."""
    return one.bottleneck + ("" if one.origin == "model" else f" (T: {one.origin})")


def _percent(one: Ranked, part: str) -> str:
    return f"{100 * one.parts_s.get(part, 0.0) / one.iteration_s:.1f}"


def _ladder_cells(rung: Rung) -> Cells:
    if not rung.ranked:
        return (str(rung.gbs), "-", "-", "-", "-", rung.why_none or "", "")
    best = rung.ranked[0]
    following = rung.next.sentence if rung.next else ""
    return (str(rung.gbs), best.name, *_figures(best), _remark(best), following)


def _fields(one: Ranked) -> dict[str, Any]:
    strategy = one.strategy
    return {
        "strategy": str(strategy),
        "dp": strategy.dp,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "mbs": strategy.mbs,
        "techniques": vars(strategy.techniques),
        "iteration_s": one.iteration_s,
        "origin": one.origin,
        "samples_per_s": one.samples_per_s,
        "memory_bytes": one.memory_bytes,
        "breakdown_s": one.parts_s,
        "bottleneck": one.bottleneck,
    }


def _next_fields(following: NextBatch) -> dict[str, Any]:
    state = {0.0: "always", math.inf: "never"}.get(following.gns, "above_gns")
    return {
        "gbs": following.gbs,
        "strategy": str(following.best.strategy),
        "wins": state,
        "gns_samples": following.gns if state == "above_gns" else None,
        "sentence": following.sentence,
    }
