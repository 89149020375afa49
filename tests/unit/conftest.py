"""Makes the helpers in this folder importable from every unit test; a corpus, and runs of a toy."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from measured_runs import DP, PP, CrashError, Make
from problems import tiny_cluster, tiny_model, tiny_tier
from toy_engine import ToyEngine
from toy_live_engine import OneProcess, ToyLiveEngine

from baselines.fixed_best import FixedBest
from cona.policy import Decision, Observation
from cona.setup import RunRequest, Setup


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a corpus of 120 short files of words with a skewed distribution."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = [f"w{i}" for i in range(60)]
    weights = [1 / (i + 1) for i in range(60)]
    for i in range(120):
        (folder / f"{i}.txt").write_text(" ".join(rng.choices(words, weights, k=400)))
    return f"text:{folder}"


@pytest.fixture
def toy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make runs of the tiny model possible, under a toy engine; return where results may go."""
    for folder, spec in (("models", tiny_model()), ("clusters", tiny_cluster())):
        path = tmp_path / "config" / folder / f"{spec.name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    monkeypatch.setenv("CONA_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(Setup, "_engine", lambda self: ToyEngine())
    return tmp_path / "results"


@pytest.fixture
def make(toy_runs: Path, small_corpus: str) -> Make:
    """Return a function that requests a measured run of the tiny model under the toy engine."""

    def request(policy: str = "fixed-best-gbs8", results: str = "results", **tier: Any) -> Any:
        content = {
            "cluster": "tiny-cluster",
            "data": {"corpus": small_corpus},
            "budget": {"seconds": 30.0},
            "clock": {"kind": "measured"},
            "techniques": {},
            **tier,
        }
        return RunRequest(
            tier=tiny_tier(**content),
            model="tiny",
            policy=policy,
            seed=0,
            results=toy_runs.with_name(results),
            ranks=OneProcess(),  # type: ignore[arg-type]
        )

    return request


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Return a function that makes a method of the live engine fail at its n-th call, once."""

    def arm(method: str, after: int) -> None:
        original, count = getattr(ToyLiveEngine, method), 0

        def fail(self: ToyLiveEngine, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == after:
                raise CrashError
            return original(self, *args, **kwargs)

        monkeypatch.setattr(ToyLiveEngine, method, fail)

    return arm


@pytest.fixture
def there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `fixed-best` go to another layout after iteration 20, and back after 40."""
    wanted = {20: PP, 40: DP}

    def decide(self: FixedBest, seen: Observation) -> Decision:
        new = wanted.get(seen.iteration)
        return Decision(strategy=new, reason="test", quiet=new is None)

    monkeypatch.setattr(FixedBest, "start", lambda self, problem: DP)
    monkeypatch.setattr(FixedBest, "decide", decide)
