"""The planner report of a tier: every planner at every global batch size of its ladder.

It needs no run. Its search times are wall-clock seconds of this machine, the only ones in a table.
Source: issue 5, item 3; baselines.md (belief and truth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cona.analysis.groups import unique
from cona.analysis.markdown import number, page, percent, table
from cona.cost.table import table_path
from cona.planners import Planner, query_of
from cona.planners.report import Verdict, judge, planner, planner_names
from cona.runlog import finite, write_atomic
from cona.scene import Scene
from cona.specs import TierSpec

COLUMNS = (
    *("model", "priced_as", "gbs", "planner", "plan", "believed_s", "believed_bytes"),
    *("strategy", "true_s", "over_best", "remark", "num_evaluated", "search_s"),
    *("belief", "time_source", "cluster"),
)
"""`strategy`: what the plan becomes with equal stages; empty where it is not expressible."""


def records(tier: TierSpec) -> list[dict[str, Any]]:
    """Return one record for every model, global batch size and planner of a tier.

    Raises:
        ConfigError: a name or setting of the tier breaks a rule.
    """
    return [record for model in tier.models for record in _of_model(Scene.of(tier, model))]


def _of_model(scene: Scene) -> Iterator[dict[str, Any]]:
    for gbs in scene.tier.ladder.rungs:
        for name in planner_names():
            asked = planner(name, gbs, scene.reference)
            belief = getattr(asked, "belief", None) or scene.tier.belief
            yield _record(scene, belief, _verdict(scene, belief, asked, name, gbs))


def _verdict(scene: Scene, belief: str, asked: Planner, name: str, gbs: int) -> Verdict:
    query = query_of(
        scene.model,
        scene.cluster,
        gbs,
        preset="improved" if table_path(belief) else belief,  # a table has no pieces
        mbs_max=scene.tier.ladder.mbs_max,
        techniques=scene.tier.techniques,
    )
    return judge(asked, name, query, scene.reference)


def _record(scene: Scene, belief: str, verdict: Verdict) -> dict[str, Any]:
    plan, truth = verdict.answer and verdict.answer.best, verdict.truth
    return {
        "model": scene.trained_model.name,
        "priced_as": scene.model.name,
        "gbs": verdict.gbs,
        "planner": verdict.planner,
        "plan": plan and str(plan),
        "believed_s": plan and finite(plan.believed_s),
        "believed_bytes": plan and finite(plan.memory_bytes),
        "strategy": truth and truth.strategy and str(truth.strategy),
        "true_s": truth and truth.seconds,
        "over_best": truth and truth.over_best,
        "remark": verdict.why_none or (truth.remark if truth else ""),
        "num_evaluated": verdict.answer and verdict.answer.num_evaluated,
        "search_s": verdict.search_s,
        "belief": belief,
        "time_source": scene.reference.name,
        "cluster": scene.cluster.name,
    }


def write_planners(results: Path, tier: TierSpec) -> list[Path]:
    """Write planners.csv and planners.md under ``results/<tier>/tables/``; return both paths.

    Raises:
        ConfigError: a name or setting of the tier breaks a rule.
    """
    import pandas as pd

    found = records(tier)
    folder = results / tier.name / "tables"
    csv, text = folder / "planners.csv", folder / "planners.md"
    write_atomic(csv, pd.DataFrame(found, columns=list(COLUMNS)).to_csv(index=False))
    write_atomic(text, markdown(tier, found))
    return [csv, text]


# --- Markdown -----------------------------------------------------------------------------------

_HEAD = ("planner", "plan", "believed s", "GB/GPU", "true s", "over best", "search s", "plans")


def markdown(tier: TierSpec, found: Sequence[dict[str, Any]]) -> str:
    """Return the page: one table for each model and global batch size."""
    first = found[0]
    others = unique(r["planner"] for r in found if r["belief"] != first["time_source"])
    named = ", ".join(f"`{name}`" for name in others) or "none"
    notes = (
        f"- Truth: seconds per iteration modelled by `{first['time_source']}` on "
        f"`{first['cluster']}`; pieces are priced by `{tier.belief}`, by another model for: "
        f"{named}. Each planner adds them up by its own formula.",
        "- Over best: how much longer the pick takes than the best uniform strategy. A plan with "
        "unequal stages is judged with equal ones; one whose degrees differ has no truth.",
        "- Placement: planners put a stage on consecutive GPUs, replicas side by side; the clock "
        "puts tp inside pp inside dp, so with pp > 1 replicas may lie on other nodes.",
        "- Search s: wall-clock seconds on the machine that wrote this; plans: how many were "
        "evaluated. n = 1, no interval.",
    )
    blocks = [b for model in unique(r["model"] for r in found) for b in _section(model, found)]
    return page(f"# Planners, tier {tier.name}", "\n".join(notes), *blocks)


def _section(model: str, found: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [r for r in found if r["model"] == model]
    yield f"## {model}, priced as {rows[0]['priced_as']}"
    for gbs in unique(r["gbs"] for r in rows):
        at = [r for r in rows if r["gbs"] == gbs]
        yield f"### gbs {gbs}"
        yield table(_HEAD, [_cells(r) for r in at])
        yield "\n".join(f"- {r['planner']}: {r['remark']}" for r in at if r["remark"])


def _cells(record: dict[str, Any]) -> list[str]:
    size = record["believed_bytes"]
    return [
        record["planner"],
        record["plan"] or "–",
        number(record["believed_s"]),
        number(size and size / 1e9, 3),
        number(record["true_s"]),
        percent(record["over_best"]),
        number(record["search_s"], 2),
        number(record["num_evaluated"]),
    ]
