"""What the Snakefile needs to know about a tier: its jobs, their files and their options.

The rules under ``workflow/rules/`` hold no logic of their own; it is here, where it can be tested.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cona import config, jobs, registry
from cona.analysis.groups import ORACLE, is_oracle
from cona.cost import time_models
from cona.data.corpora import CORPORA, check_exists, is_corpus
from cona.errors import ConfigError, nearest
from cona.resources import Geometry, Resources, training_job
from cona.scene import Scene
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, Spec, TierSpec

SETTINGS = ("tier", "scale", "results", "data")
"""What `snakemake --config` may set."""

_NOT_OF_A_RUN = {"name", "description", "gives_verdicts", "share_process", "jobs"}
_NOT_OF_ONE_RUN = {"models", "policies", "seeds", "seeds_of"}


class Wildcards(Iterable[str], Protocol):
    """What Snakemake says about a training job: the values, of which one has this name."""

    model: str


Resource = Callable[[Wildcards], int | str]


def check_settings(settings: Mapping[str, object]) -> None:
    """Answer a wrong setting with the nearest valid one, before the schema refuses it at length.

    Raises:
        ConfigError: an unknown key, a value that is no text, or a corpus of another form.
    """
    for key, value in settings.items():
        if key not in SETTINGS:
            raise ConfigError(f"--config {key}: unknown key: {nearest(key, SETTINGS)}")
        if not isinstance(value, str) or not value:  # Snakemake reads 5 as a number
            written = "" if value is None else str(value)
            raise ConfigError(f"--config {key}={written}: {_valid(key, written)}")
    corpus = str(settings.get("data", "stdlib"))
    if not is_corpus(corpus):
        raise ConfigError(f"--config data={corpus}: valid: {CORPORA}")
    results = str(settings.get("results", ""))
    if set(results) & set("{}\n"):  # Snakemake would take braces for a wildcard
        raise ConfigError(f"--config results={results!r}: a folder without braces and line ends")


def _valid(key: str, written: str) -> str:
    """Return what a setting may be, near to what was written."""
    kinds: dict[str, type[Spec]] = {"tier": TierSpec, "scale": ScaleSpec}
    if key in kinds:
        return nearest(written, config.names(kinds[key]))
    return f"valid: {CORPORA}" if key == "data" else f"a folder, e.g. ./{written or 'results'}"


def with_scale(tier: str, scale: str | None) -> str:
    """Return how `cona --tier` finds a tier at a scale: paper@tiny; None: the tier itself."""
    return f"{tier}@{scale}" if scale else tier


@dataclass(frozen=True, kw_only=True)
class Group:
    """Policies that one job trains in one process, one after the other."""

    name: str
    """Names the log, and with `train_` before it the rule: `policies` or `greedy_oracle`."""
    policies: tuple[str, ...]
    """Policies with their parameters."""
    priority: int
    """Snakemake starts jobs of higher priority first."""

    @property
    def title(self) -> str:
        """Who trains, for people: the policy, or how many there are."""
        return self.policies[0] if len(self.policies) == 1 else f"{len(self.policies)} policies"

    @property
    def options(self) -> str:
        """The policies as options of `cona run`."""
        return " ".join(f"--policy {shlex.quote(policy)}" for policy in self.policies)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The jobs of one tier under one results folder."""

    tier: TierSpec
    """The tier, with the corpus replaced if the user asked for another."""
    spec: str
    """How `cona --tier` finds it: its name or the path of its file, then @ and its scale if any."""
    results: str
    """Results root; this pipeline writes below `<results>/<tier>/`."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Pipeline:
        """Build the pipeline from Snakemake's validated configuration.

        Args:
            settings: `tier`, `results` and, optionally, `scale` and `data`.

        Raises:
            ConfigError: no such tier, scale, model or cluster; or a value of the tier breaks a
                rule.
        """
        spec = with_scale(settings["tier"], settings.get("scale"))
        tier = config.load(TierSpec, spec)
        if corpus := settings.get("data"):
            tier = config.override(tier, {"data.corpus": corpus}, where="data")
        check_exists(tier.data.corpus)
        pipeline = cls(tier=tier, spec=spec, results=settings["results"].rstrip("/"))
        for model in tier.models:
            pipeline.fingerprint(model)
        for name in (tier.belief, tier.clock.time_source):
            if name not in time_models():
                raise ConfigError(f"unknown time model '{name}': {nearest(name, time_models())}")
        scene = Scene.of(tier, tier.models[0])
        for policy in tier.policies:
            scene.with_engine_of(registry.policy(policy))
        return pipeline

    @property
    def folder(self) -> str:
        """Where everything of the tier goes."""
        return f"{self.results}/{self.tier.name}"

    @property
    def results_files(self) -> list[str]:
        """The file of every run of the tier that says it is finished."""
        return [
            f"{self.folder}/{model}/{policy}/seed{seed}/result.json"
            for model in self.tier.models
            for policy in self.tier.policies
            for seed in self.tier.seeds_for(policy)
        ]

    @property
    def logs(self) -> str:
        """Where the jobs of the tier log."""
        return f"logs/{self.tier.name}"

    @property
    def data_options(self) -> str:
        """Options of `cona data`."""
        return f"--tier {shlex.quote(self.spec)} --data {shlex.quote(self.tier.data.corpus)}"

    @property
    def corpus_key(self) -> str:
        """Tells one text from another, and from itself after a change; reads no file.

        It names the file that says that the data is ready, so that another text is prepared and
        trained on although everything of the first one still stands.
        """
        kind, _, path = self.tier.data.corpus.partition(":")
        if kind not in ("text", "wikitext"):
            return config.content_hash(self.tier.data.corpus, sys.version)
        root = Path(path)
        files = [root, *sorted(root.rglob("*"))] if root.exists() else []
        stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
        return config.content_hash(self.tier.data.corpus, stats)

    @property
    def geometry(self) -> Geometry:
        """Nodes and ranks of every training job."""
        return Geometry.of(self.tier, config.load(ClusterSpec, self.tier.cluster))

    def resources(self, rule: str) -> dict[str, Resource]:
        """Return Snakemake's resources of a training rule, as functions of the wildcards.

        Args:
            rule: its name.
        """

        def of_model(key: str) -> Resource:
            return lambda wildcards: self._job(wildcards.model)[key]

        def extra(wildcards: Wildcards) -> str:
            behind = jobs.before(rule, wildcards)
            options = [of_model("slurm_extra")(wildcards)]
            options += [f"--dependency=afterany:{':'.join(behind)}"] if behind else []
            return " ".join(map(str, options))

        keys = self._job(self.tier.models[0])
        return {key: of_model(key) for key in keys} | {"slurm_extra": extra}

    def _job(self, model: str) -> Resources:
        return training_job(self.geometry, self.tier.jobs, config.load(ModelSpec, model))

    @property
    def run_options(self) -> str:
        """Options of `cona run` that all runs share."""
        return f"{self.data_options} --out {shlex.quote(self.results)}"

    @property
    def report_options(self) -> str:
        """Options of `cona tables`, `cona figures` and `cona track`."""
        return f"--tier {shlex.quote(self.spec)} --out {shlex.quote(self.results)}"

    @property
    def groups(self) -> tuple[Group, ...]:
        """Who trains together: each policy alone, or all but the oracles in one process.

        Forks make an oracle the longest job by far: it gets a process of its own, first. So do
        policies with seeds of their own (`seeds_of`), because a job has one seed.
        """
        policies = self.tier.policies
        if not self.tier.share_process:
            return tuple(_group(_identifier(p), (p,)) for p in policies)
        together: dict[str, list[str]] = {}
        for policy in sorted(policies, key=is_oracle, reverse=True):
            own = [str(seed) for seed in self.tier.seeds_of.get(policy, ())]
            name = _identifier(ORACLE) if is_oracle(policy) else "policies"
            together.setdefault("_".join([name, *(["seeds"] if own else []), *own]), []).append(
                policy
            )
        return tuple(_group(name, tuple(members)) for name, members in together.items())

    def fingerprint(self, model: str) -> str:
        """Return a hash of all settings that training a model depends on.

        Names of models, policies and seeds are left out: adding one must not repeat the others.
        """
        settings = self.tier.settings(without=_NOT_OF_A_RUN | _NOT_OF_ONE_RUN)
        spec = config.load(ModelSpec, model)
        priced = config.load(ModelSpec, spec.priced_as) if spec.priced_as else spec
        cluster = config.load(ClusterSpec, self.tier.cluster)
        return config.content_hash(settings, self.corpus_key, spec, priced, cluster)


def _identifier(policy: str) -> str:
    return re.sub(r"\W", "_", policy)


def _group(name: str, policies: tuple[str, ...]) -> Group:
    priority = 10 if any(map(is_oracle, policies)) else 0
    return Group(name=name, policies=policies, priority=priority)
