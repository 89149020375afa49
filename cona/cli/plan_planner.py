"""How `cona plan --planner` answers: who is asked what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from cona import config
from cona.cli import planner_text
from cona.cli.plan_answer import Request, load_model
from cona.cli.terminal import say, steps
from cona.cost import TimeModel, time_model
from cona.cost.profile import ProfileCosts
from cona.errors import ConfigError
from cona.planners import Query, query_of
from cona.planners.report import Verdict, chosen_names, found_any, judge, planner
from cona.planning import DEFAULT_PRESET
from cona.specs import ClusterSpec
from cona.strategy import Techniques

REFERENCE = DEFAULT_PRESET
"""Time model that says what is true of a plan."""


@dataclass(frozen=True, kw_only=True)
class PlannerRequest:
    """The options of `cona plan` that only planners have, beside the others."""

    planner: str
    profile: Path | None
    num_gpus: int | None
    all_plans: bool
    plan: Request


def answer(request: PlannerRequest) -> None:
    """Ask the planners, and print the report. Raises ConfigError."""
    names, subject = chosen_names(request.planner), Subject.of(request)
    sizes = request.plan.batch_sizes((subject.query.space,))
    questions = [(name, gbs) for gbs in sizes for name in names]
    verdicts = [subject.verdict(*question) for question in steps(questions, "asking planners")]
    found_any(verdicts)
    if request.plan.as_json:
        click.echo(planner_text.as_json(subject.about, verdicts, all_plans=request.all_plans))
    else:
        say(planner_text.as_text(subject.title, verdicts, all_plans=request.all_plans))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What planners are asked about: a model on a cluster, or a profile on some GPUs."""

    about: dict[str, Any]
    """Facts for programs."""
    title: str
    """One line for people."""
    query: Query
    """The question at one batch size; only gbs differs between questions."""
    reference: TimeModel | None
    """What is true; None: a profile knows nothing beyond itself."""
    preset: str | None
    """Cost model that prices planners' pieces, unless they bring one; None: a profile."""

    @classmethod
    def of(cls, request: PlannerRequest) -> Subject:
        """Return what a request is about. Raises ConfigError."""
        techniques = _techniques(request.plan)
        return (
            _of_profile(request, techniques)
            if request.profile
            else _of_cluster(request.plan, techniques)
        )

    def verdict(self, name: str, gbs: int) -> Verdict:
        """Return what a planner makes of one global batch size."""
        asked = planner(name, gbs, self.reference)
        query = replace(self.query, gbs=gbs)
        belief = getattr(asked, "belief", None)
        if query.cluster is not None and belief not in (None, self.preset):
            query = query_of(
                query.model,
                query.cluster,
                gbs,
                preset=belief,
                mbs_max=query.mbs_max,
                techniques=query.techniques,
            )
        return judge(asked, name, query, self.reference)


def _techniques(request: Request) -> Techniques:
    found = request.choices.techniques
    if len(found) > 1:
        raise ConfigError("--planner: planners take one value of each technique; give each once")
    return found[0]


def _of_cluster(request: Request, techniques: Techniques) -> Subject:
    model = load_model(request.model, request.seq)
    cluster = config.load(ClusterSpec, request.cluster)
    preset = request.preset or DEFAULT_PRESET
    query = query_of(
        model,
        cluster,
        request.gbs or 1,
        preset=preset,
        mbs_max=request.mbs_max,
        techniques=techniques,
    )
    title = (
        f"{model.name} (seq {model.seq_length}) on {cluster.name} ({cluster.num_gpus} x "
        f"{cluster.gpu}); planners' pieces priced by {preset}, truth modelled by {REFERENCE}"
    )
    about = {
        "model": model.name,
        "seq_length": model.seq_length,
        "cluster": cluster.name,
        "num_gpus": cluster.num_gpus,
        "costs": preset,
        "reference": REFERENCE,
        "techniques": asdict(techniques),
    }
    reference = time_model(REFERENCE, model, cluster)
    return Subject(about=about, title=title, query=query, reference=reference, preset=preset)


def _of_profile(request: PlannerRequest, techniques: Techniques) -> Subject:
    if request.num_gpus is None or request.profile is None:
        raise ConfigError("--gpus is missing: a profile is for any number of GPUs, give one like 8")
    costs = ProfileCosts(request.profile, request.num_gpus)
    query = Query(
        model=costs.model,
        num_gpus=request.num_gpus,
        gpus_per_node=costs.spec.gpus_per_node,
        gbs=request.plan.gbs or 1,
        mbs_max=request.plan.mbs_max,
        costs=costs,
        gpu_memory_bytes=costs.spec.gpu_memory_gb * 1e9,
        techniques=techniques,
    )
    title = (
        f"profile {request.profile} ({costs.model.num_layers} layers) on {request.num_gpus} GPUs, "
        f"{costs.spec.gpus_per_node} in a node; all seconds are the planners' belief"
    )
    about = {"profile": str(request.profile), "num_gpus": request.num_gpus, "reference": None}
    return Subject(about=about, title=title, query=query, reference=None, preset=None)
