"""A thousand wrong configurations: each one plans, or is refused in one sentence, at once."""

from __future__ import annotations

import itertools
import math
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import any_value, garbage, mutants, texts

from cona import config, registry
from cona.cli.options import load_tier
from cona.cli.plan_text import About, top
from cona.errors import ConaError
from cona.pipeline import Pipeline
from cona.planning import Choices, plan_rungs, search_spaces
from cona.policy import InformedPolicy, ProbingPolicy
from cona.scene import Scene
from cona.specs import ClusterSpec, ModelSpec, Spec, TierSpec

LIMIT_S = 10
"""CPU seconds of one case: a hundredth of it is usual."""

NUM_CASES = 1000
LARGEST_PLANNED = 8
"""GPUs on which offline planners are asked, which take minutes on more."""

NUMBERS = itertools.count()
SETTINGS = ["budget.iterations", "ladder.gbs_max", "cluster", "clock.kind", "belief", "a.b", "name"]


def shipped(kind: type[Spec]) -> list[str]:
    """Return the text of every file of a kind."""
    folder = config.config_root() / config.KINDS[kind]
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))]


def mutated(text: str) -> st.SearchStrategy[str]:
    """Draw a mutation of a file: of what it says, or of its letters."""
    documents = mutants(yaml.safe_load(text)).map(dump)
    return st.one_of(*[documents] * 5, texts(text))


def dump(document: Any) -> str:
    """Return a document as YAML."""
    return str(yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))


FILES = {
    kind: st.one_of(*map(mutated, shipped(kind))) for kind in (TierSpec, ModelSpec, ClusterSpec)
}
SMALL_TIER = yaml.safe_load((config.config_root() / "tiers" / "smoke.yaml").read_text("utf-8"))
KINDS = st.sampled_from([TierSpec, TierSpec, ModelSpec, ClusterSpec])
CHANGE = st.builds("{}={}".format, st.sampled_from(SETTINGS), any_value.map(str))
CHANGES = st.one_of(*[st.just([])] * 6, st.lists(CHANGE, min_size=1, max_size=2))
SUFFIXES = st.one_of(*[st.just("")] * 6, garbage)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in here after so many seconds of this process, whatever others do."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def plan(tier_name: str, sets: list[str], suffix: str, pick: int) -> None:
    """Do what the pipeline, `cona plan` and a run do before anything is trained."""
    pipeline = Pipeline.of({"tier": tier_name, "results": "results"})
    assert pipeline.groups and pipeline.results_files and pipeline.resources("train_policies")
    tier = load_tier(tier_name, None, sets)
    scene = Scene.of(tier, tier.models[pick % len(tier.models)])
    rank(scene)
    name = tier.policies[pick % len(tier.policies)] + suffix
    policy = registry.policy(name)
    if policy.kind == "offline" and scene.cluster.num_gpus > LARGEST_PLANNED:
        return
    if isinstance(policy, ProbingPolicy):
        policy.attach(lambda plan: 1.0)
    if isinstance(policy, InformedPolicy):
        policy.know(scene.reference)
    first = policy.start(scene.problem(policy))
    assert 0 < scene.belief(policy).time_s(first) < math.inf


def rank(scene: Scene) -> None:
    """Rank the strategies of the smallest batch and write them down, as `cona plan` does."""
    tier, used = scene.tier, scene.tier.techniques
    choices = Choices(
        zero_stages=(used.zero_stage,),
        recompute=(used.recompute,),
        virtual_stages=(used.virtual_stages,),
        context_parallel=(used.context_parallel,),
        sequence_parallel=used.sequence_parallel,
    )
    gbs, num_gpus = tier.ladder.gbs_min, scene.cluster.num_gpus
    spaces = search_spaces(scene.model, num_gpus, mbs_max=tier.ladder.mbs_max, choices=choices)
    (rung,) = plan_rungs(spaces, (gbs,), scene.reference, top=3)
    assert all(0 < ranked.iteration_s < math.inf for ranked in rung.ranked)
    about = About(model=scene.model, cluster=scene.cluster, preset=tier.belief, is_calibrated=None)
    assert top(about, rung)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a copy of the configurations, in which they are looked for."""
    copied = tmp_path_factory.mktemp("mutants") / "config"
    shutil.copytree(config.config_root(), copied)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONA_CONFIG_DIR", str(copied))
        yield copied


@contextmanager
def added(folder: Path, kind: type[Spec], text: str) -> Iterator[str]:
    """Add a file of a kind for a while; yield a tier that uses it, or is it."""
    name = f"mutant{next(NUMBERS)}"  # a new one: files are read once
    files = {kind: text}
    if kind is not TierSpec:
        own = {"models": [name]} if kind is ModelSpec else {"cluster": name}
        files[TierSpec] = dump(SMALL_TIER | own)
    paths = {folder / config.KINDS[k] / f"{name}.yaml": content for k, content in files.items()}
    for path, content in paths.items():
        path.write_text(content, encoding="utf-8")
    yield name
    for path in paths:
        path.unlink()


@settings(
    max_examples=NUM_CASES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_configuration_plans_or_is_refused_in_one_sentence(folder: Path, data: Any) -> None:
    kind = data.draw(KINDS)
    text = data.draw(FILES[kind])
    arguments = (data.draw(CHANGES), data.draw(SUFFIXES), data.draw(st.integers(0, 50)))
    with added(folder, kind, text) as tier, time_limit(LIMIT_S), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a user would see it too
        try:
            plan(tier, *arguments)
        except ConaError as error:
            sentence = str(error)
            assert sentence.strip() and sentence.isprintable() and len(sentence) < 5000
