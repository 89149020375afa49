"""The table of attributions: what the batch sizes and what the layouts give each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cona.analysis.attribution import Attribution, State, attributions, first_strategy
from cona.analysis.groups import METHOD, by_model, by_policy, marked, unique
from cona.analysis.load import Run
from cona.analysis.markdown import NOT_REACHED, number, page, ratio, table, yes
from cona.analysis.notes import notes, num_seeds
from cona.analysis.seeds import common_seeds
from cona.analysis.statistics import geometric_mean
from cona.analysis.ttp import headline_target, label

COLUMNS = (
    *("model", "policy", "kind", "seed", "target", "headline", "state", "ttp_s"),
    *("static_policy", "static_strategy", "ttp_static_s", "ttp_sequence_at_static_s"),
    *("schedule_factor", "layout_factor", "speedup", "speedup_at_least", "over_cona"),
    *("ttp_best_layout_at_its_gbs_s", "planning_loss", "belief", "time_source", "why_none"),
)
"""speedup = schedule_factor * layout_factor. `state` at_least: the static strategy did not reach
the target, so its budget stands for its TTP and schedule_factor and speedup are lower bounds."""


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one record for every run and target; what does not exist is None."""
    found = []
    for group in by_model(runs).values():
        ones = attributions(group)
        headline = headline_target([one.row for one in ones])
        ours = {(o.row.run.seed, o.row.target): o for o in ones if o.row.run.policy == METHOD}
        for one in ones:
            over = over_method(one, ours.get((one.row.run.seed, one.row.target)))
            head = {"headline": yes(one.row.target == headline), "over_cona": over}
            found.append(_record(one) | head)
    return found


def over_method(one: Attribution, ours: Attribution | None) -> float | None:
    """Return TTP(run)/TTP(cona) at the same seed and target; None: either was not reached."""
    if ours is None or ours.row.train_s is None or one.row.train_s is None:
        return None
    return one.row.train_s / ours.row.train_s


def _record(one: Attribution) -> dict[str, Any]:
    run, static, own = one.row.run, one.static, one.at_own_gbs
    bound = one.state == "at_least"
    return {
        "model": run.model,
        "policy": run.policy,
        "kind": run.kind,
        "seed": run.seed,
        "target": one.row.target,
        "state": one.state,
        "ttp_s": one.row.train_s,
        "static_policy": static and static.run.policy,
        "static_strategy": static and first_strategy(static.run),
        "ttp_static_s": static and static.train_s,
        "ttp_sequence_at_static_s": one.at_static.seconds,
        "schedule_factor": one.schedule,
        "layout_factor": one.layout,
        "speedup": None if bound else one.speedup,
        "speedup_at_least": one.speedup if bound else None,
        "ttp_best_layout_at_its_gbs_s": own and own.seconds,
        "planning_loss": one.planning_loss,
        "belief": run.result["belief"],
        "time_source": run.clock["time_source"],
        "why_none": one.at_static.why_none or (own and own.why_none),
    }


# --- Markdown -----------------------------------------------------------------------------------

Number = Callable[[Attribution], float | None]


def centre(ones: Sequence[Attribution], of: Number) -> float | None:
    """Return the geometric mean over seeds; None if a seed has no such number."""
    values = [value for one in ones if (value := of(one)) is not None]
    return geometric_mean(values) if values and len(values) == len(ones) else None


def markdown(tier: str, runs: Sequence[Run]) -> str:
    """Return the page of attributions at each model's headline target."""
    own = (
        "Speed-up over the best fixed strategy in hindsight = batch sizes x layouts: "
        "[TTP(static) / TTP(the run's batch sizes at the static layout)] x [TTP(that) / TTP(run)]. "
        "The middle is re-timed: losses depend on the batch sizes only, so every iteration of the "
        "run is priced at the static layout (dp, tp, pp) with its fastest micro-batch, without "
        "switches and without the budget's end.",
        "Own gbs: TTP at the best layout of the batch size that a run never leaves; its ratio to "
        "the run's TTP is what the planner lost by its layout.",
        "÷ cona: TTP(run)/TTP(cona): what an ablation costs, or a rival.",
        f"≥: a lower bound, the static strategy did not reach the target; `{NOT_REACHED}`: the run "
        "did not. All rungs are in `attribution.csv`.",
        "Cells: geometric mean over the seeds that most policies have, so that rows compare and "
        "factors multiply; no interval. All seeds are in `attribution.csv`.",
        bias_sentence(runs),
    )
    sections = [block for group in by_model(runs).values() for block in _section(group)]
    return page(f"# Attribution, tier {tier}, {num_seeds(runs)}", notes(runs, *own), *sections)


def bias_sentence(runs: Sequence[Run]) -> str:
    """Return whose time model differs from the reference clock, so that a bias can show."""
    same = unique(r.policy for r in runs if r.result["belief"] == r.clock["time_source"])
    other = unique(r.policy for r in runs if r.result["belief"] != r.clock["time_source"])
    sources = " / ".join(f"`{s}`" for s in unique(str(r.clock["time_source"]) for r in runs))
    differing = ", ".join(f"`{p}`" for p in other) if other else "none"
    return (
        f"Time source {sources}. Believed otherwise by: {differing}. The other {len(same)} plan "
        "with it, or with pieces of it, so a wrong total time costs them nothing here by "
        "construction."
    )


def _section(group: Sequence[Run]) -> Iterator[str]:
    yield f"## {group[0].model} ({group[0].metric})"
    ones = attributions(group)
    target = headline_target([one.row for one in ones])
    if target is None:
        yield "No headline target: nothing to attribute."
        return
    seeds = common_seeds(group)
    at = [one for one in ones if one.row.target == target and seeds.has(one.row.run)]
    yield seeds.sentence()
    yield f"At the headline target {label(target)}; the best fixed strategy: {_statics(at)}."
    ours = {one.row.run.seed: one for one in at if one.row.run.policy == METHOD}
    headers = ["policy", "TTP s", "own gbs s", "at static s", "batch sizes", "layouts"]
    lines = [
        [marked(policy, same[0].kind), *_cells([o for o in at if o.row.run.policy == policy], ours)]
        for policy, same in by_policy(group).items()
        if policy in seeds.policies
    ]
    yield table([*headers, "speed-up", "÷ cona"], lines)
    yield _reasons(at)


def _statics(ones: Sequence[Attribution]) -> str:
    statics = [one.static.run for one in ones if one.static]
    named = unique(f"`{run.policy}`, {first_strategy(run)}" for run in statics)
    return "; ".join(named) or "none was run"


def _cells(ones: Sequence[Attribution], ours: dict[int, Attribution]) -> list[str]:
    reached = sum(one.row.train_s is not None for one in ones)
    if reached < len(ones):
        seeds = f" ({reached}/{len(ones)})" if len(ones) > 1 else ""
        return [f"{NOT_REACHED}{seeds}", *["–"] * 6]
    bound = "≥ " if state_of(ones) == "at_least" else ""
    own = centre(ones, lambda one: one.at_own_gbs.seconds if one.at_own_gbs else None)
    return [
        number(centre(ones, lambda one: one.row.train_s)),
        number(own),
        number(centre(ones, lambda one: one.at_static.seconds)),
        _bounded(centre(ones, lambda one: one.schedule), bound),
        ratio(centre(ones, lambda one: one.layout)),
        _bounded(centre(ones, lambda one: one.speedup), bound),
        ratio(centre(ones, lambda one: over_method(one, ours.get(one.row.run.seed)))),
    ]


def state_of(ones: Sequence[Attribution]) -> State:
    """Return the weakest state of any seed."""
    order: tuple[State, ...] = ("no_static", "not_reached", "unpriced", "at_least", "product")
    return min((one.state for one in ones), key=order.index)


def _bounded(value: float | None, bound: str) -> str:
    return ratio(value) if value is None else bound + ratio(value)


def _reasons(ones: Sequence[Attribution]) -> str:
    whys = unique(one.at_static.why_none for one in ones if one.row.train_s)
    return "\n".join(f"- Without a price: {why}." for why in whys if why)
