"""Run directories as typed objects: the only reader of results below the runner.

Source: docs/results-format.md.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cona import config
from cona.analysis.groups import METHOD, by_model, order
from cona.cost.switch import PRESETS
from cona.errors import RunError
from cona.result import RESULT_SCHEMA, is_intact
from cona.specs import ScaleSpec, TierSpec

Record = dict[str, Any]

BRINGS_ENGINE = "-engine="
"""In the name of a policy that trains with an engine of its own, and is compared all the same."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Evaluations of one run in order; every array has shape [evaluations]."""

    samples: NDArray[np.int64]
    """Consumed samples."""
    train_s: NDArray[np.float64]
    """Train clock in seconds, under the run's own switch-cost preset."""
    wall_s: NDArray[np.float64]
    """Train clock plus modelled evaluation time, seconds."""
    compute_s: NDArray[np.float64]
    """Train clock in seconds without any switch cost."""
    switch_s: dict[str, NDArray[np.float64]]
    """Seconds of switches so far, by preset; on the measured clock under `measured` alone."""
    ppl: NDArray[np.float64]
    """Perplexity: finite, for an evaluation without one is left out."""

    def recharged_s(self, preset: str) -> NDArray[np.float64]:
        """Return the train clock of the same decisions with switches charged by a preset."""
        return self.compute_s + self.switch_s[preset]

    def log_ppl_at(self, train_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log perplexity, linear in train_s between evaluations."""
        return np.interp(train_s, self.train_s, np.log(self.ppl))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run directory: a model under a policy and a seed."""

    path: Path
    """The run directory."""
    result: Record
    """result.json."""
    info: Record
    """run.json; empty if the file is missing."""
    steps: tuple[Record, ...]
    """Lines of kind `step`."""
    evals: tuple[Record, ...]
    """Lines of kind `eval`."""
    decisions: tuple[Record, ...]
    """Lines of kind `decision`."""
    switches: tuple[Record, ...]
    """Lines of kind `switch`."""

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.result["model"])

    @property
    def policy(self) -> str:
        """Name of the policy with its parameters."""
        return str(self.result["policy"])

    @property
    def kind(self) -> str:
        """Kind of the policy: offline, online, schedule, bound or ablation."""
        return str(self.result["kind"])

    @property
    def seed(self) -> int:
        """Seed of the initial weights and the sample order."""
        return int(self.result["seed"])

    @property
    def metric(self) -> str:
        """Name of the perplexity: `ppl`, or `mlm_ppl` for masked models."""
        return str(self.result["perplexity_name"])

    @property
    def budget_s(self) -> float:
        """Time budget in seconds of the train clock."""
        return float(self.result["time_budget_s"])

    @property
    def clock(self) -> Record:
        """What a second is: kind, time_source, switch_cost, cluster, priced_as, unit."""
        return dict(self.result["clock"])

    @property
    def tier_config(self) -> Record:
        """The tier's configuration from run.json; empty if it is not known."""
        return dict(self.info.get("tier", {}))

    @property
    def corpus(self) -> str | None:
        """The text trained on, `stdlib` or `text:<path>`; None if it is not known."""
        return self.tier_config.get("data", {}).get("corpus")

    @property
    def name(self) -> str:
        """`model/policy/seed<k>`."""
        return f"{self.model}/{self.policy}/seed{self.seed}"

    @cached_property
    def curve(self) -> Curve:
        """The evaluations that have a perplexity."""
        rows = [e for e in self.evals if e["ppl"] is not None]
        names = rows[0]["switch_s"] if rows else PRESETS
        return Curve(
            samples=np.array([e["samples"] for e in rows], dtype=np.int64),
            train_s=_floats(e["train_s"] for e in rows),
            wall_s=_floats(e["wall_s"] for e in rows),
            compute_s=_floats(e["compute_s"] for e in rows),
            switch_s={p: _floats(e["switch_s"][p] for e in rows) for p in names},
            ppl=_floats(e["ppl"] for e in rows),
        )


def load_runs(results: Path, tier: str) -> list[Run]:
    """Read every finished run of a tier, ordered by model, policy and seed.

    Args:
        results: root of the results.
        tier: name of the tier, the folder below it.

    Raises:
        RunError: there is no finished run, a file is damaged, or runs of one model cannot be
            compared because their clock, time budget or data differ.
    """
    paths = (results / tier).glob("*/*/seed*/result.json")
    runs = [load_run(path.parent) for path in sorted(paths)]
    if not runs:
        raise RunError(
            f"{results / tier}: no finished run; start one with {run_command(results, tier)}"
        )
    runs.sort(key=lambda r: (r.model, order(r.policy, r.kind), r.seed))
    _refuse_mixture(runs)
    return runs


def asked_as(tier: str) -> str | None:
    """Return how `--tier` finds the tier of a folder: paper@tiny of paper-tiny; None: no such name.

    Args:
        tier: the folder's name; that of a user's own file is not known here.
    """
    tiers, scales = config.names(TierSpec), config.names(ScaleSpec)
    at_scale = {f"{name}-{scale}": f"{name}@{scale}" for name, scale in product(tiers, scales)}
    return tier if tier in tiers else at_scale.get(tier)


def run_command(results: Path, tier: str, policy: str = METHOD) -> str:
    """Return a command that makes a run, as a sentence can name it.

    Args:
        results: root of the results.
        tier: name of the tier, the folder below it.
        policy: what the run should be of.
    """
    spec = asked_as(tier)
    if spec is None:
        return "`cona run --tier`, naming the YAML file of this tier"
    model, out = config.load(TierSpec, spec).models[0], shlex.quote(str(results))
    return f"`cona run --model {model} --policy {policy} --tier {spec} --out {out}`"


def load_run(path: Path) -> Run:
    """Read one finished run directory; raises RunError if a file is missing or damaged."""
    result = _mapping(_read(path / "result.json"), path / "result.json")
    if result.get("schema") != RESULT_SCHEMA:
        raise RunError(
            f"{path / 'result.json'}: schema {result.get('schema')} is not {RESULT_SCHEMA}; "
            "delete it and run it again"
        )
    if not is_intact(result):
        raise RunError(
            f"{path / 'result.json'}: does not match its checksum; delete it and run it again"
        )
    content = _metrics(path, result)
    kinds: dict[str, list[Record]] = {"step": [], "eval": [], "decision": [], "switch": []}
    for line in content.splitlines():
        record = json.loads(line)
        kinds.setdefault(record["kind"], []).append(record)
    info = path / "run.json"
    return Run(
        path=path,
        result=result,
        info=_mapping(_read(info), info) if info.exists() else {},
        steps=tuple(kinds["step"]),
        evals=tuple(kinds["eval"]),
        decisions=tuple(kinds["decision"]),
        switches=tuple(kinds["switch"]),
    )


def _refuse_mixture(runs: Sequence[Run]) -> None:
    for group in by_model(runs).values():
        first = group[0]
        for run in group[1:]:
            for key in ("clock", "time_budget_s", "data_hash", "comparison_key"):
                if _compared(run, first, key) != _compared(first, run, key):
                    raise RunError(
                        f"{run.name} has {key} {run.result[key]} but {first.name} has "
                        f"{first.result[key]}: they cannot be compared; delete the outdated one"
                    )


def _compared(run: Run, other: Run, key: str) -> Any:
    """Return what of a run must equal the other's; not the engine where a policy brings its own."""
    value = run.result[key]
    if key == "clock" and any(BRINGS_ENGINE in one.policy for one in (run, other)):
        own = {"kind", "switch_path"}
        engine = {k: v for k, v in value.get("engine", {}).items() if k not in own}
        return {**value, "engine": engine}
    return value


def _metrics(path: Path, result: Record) -> bytes:
    content = _read(path / "metrics.jsonl")
    found = hashlib.sha256(content).hexdigest()
    if found != result["metrics_sha256"]:
        raise RunError(
            f"{path / 'metrics.jsonl'}: checksum {found[:12]} is not the one in result.json; "
            "delete result.json and run it again"
        )
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; run it again") from error


def _mapping(content: bytes, path: Path) -> Record:
    try:
        return dict(json.loads(content))
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}; delete it and run it again") from error


def _floats(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)
