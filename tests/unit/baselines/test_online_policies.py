"""What holds for every policy that changes its strategy: on random traces, and in whole runs."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import TABLE, TableTimes, problem, tiny_model, tiny_tier
from walks import walk

from cona import registry
from cona.runlog import read_json
from cona.runner import RunRequest, run
from cona.strategy import Strategy, StrategySpace

ON_LADDER = [
    "copus",
    "cbs-pessimistic",
    "cbs-optimistic",
    "norm-test",
    "norm-test-norm=debiased",
    "seesaw",
    "seesaw-reference=zero",
    "cona-gbs-only",
    "cona-layout-only-gbs16",
    "cona-no-gns",
]
NEVER_DOWN = [p for p in ON_LADDER if p.startswith(("cbs", "norm", "seesaw"))]
RUNS = [
    *ON_LADDER,
    "pollux",
    "merrill",
    "rampup",
    "rampup-layout=fixed",
    "greedy-oracle-lookahead=2",
    "greedy-oracle-charged=on",
]


@pytest.mark.parametrize("name", ON_LADDER)
@settings(max_examples=20)
@given(trace=st.lists(st.floats(0.01, 200), min_size=1, max_size=40))
def test_strategies_are_in_the_space_and_on_the_ladder(name: str, trace: list[float]) -> None:
    asked = problem(TableTimes(TABLE))
    chain = walk(registry.policy(name), asked, trace)
    strategies = [Strategy.parse(text) for _, text in chain]
    for strategy in strategies:
        assert strategy.gbs in asked.rungs
        assert strategy in asked.space.at(strategy.gbs)
        assert asked.belief.why_not(strategy) is None
    assert all(a != b for a, b in pairwise(strategies))
    if name in NEVER_DOWN:
        assert [s.gbs for s in strategies] == sorted(s.gbs for s in strategies)


@pytest.mark.parametrize("name", ON_LADDER)
def test_the_same_observations_give_the_same_decisions(name: str) -> None:
    trace = [0.5 * 1.2**i for i in range(40)]
    chains = [walk(registry.policy(name), problem(TableTimes(TABLE)), trace) for _ in range(2)]
    assert chains[0] == chains[1]


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_finishes_and_repeats_itself(
    name: str, toy_runs: Path, small_corpus: str
) -> None:
    tier = tiny_tier(
        cluster="tiny-cluster",
        data={"corpus": small_corpus},
        budget={"iterations": 40},
        learning_rate={"decay_samples": 300},
    )
    results = [
        read_json(
            run(RunRequest(tier=tier, model="tiny", policy=name, seed=0, results=toy_runs / copy))
        )
        for copy in ("a", "b")
    ]
    assert results[0]["status"] == "finished"
    assert results[0]["stages"] == results[1]["stages"]
    assert results[0]["metrics_sha256"] == results[1]["metrics_sha256"]
    space = StrategySpace(model=tiny_model(), num_gpus=4, ladder=tier.ladder)
    for stage in results[0]["stages"]:
        strategy = Strategy.parse(stage["strategy"])
        assert 8 <= strategy.gbs <= 32
        assert strategy in space.at(strategy.gbs)


def test_branches_of_the_critical_batch_scale_the_learning_rate(
    toy_runs: Path, small_corpus: str
) -> None:
    # Branches are segments of the trajectory tree: those at twice the batch train at sqrt(2) times
    # the rate that the run itself has at the same number of samples.
    tier = tiny_tier(
        cluster="tiny-cluster", data={"corpus": small_corpus}, budget={"iterations": 20}
    )
    run(RunRequest(tier=tier, model="tiny", policy="merrill", seed=0, results=toy_runs))
    rates: dict[int, dict[int, float]] = {}
    for folder in (toy_runs / "tiny" / "tiny" / "_trajectories").iterdir():
        gbs = read_json(folder / "segment.json")["gbs"]
        steps = folder / "steps.jsonl"
        for line in steps.read_text().splitlines() if steps.exists() else []:
            step = yaml.safe_load(line)
            rates.setdefault(gbs, {})[step["samples"]] = step["lr"]
    common = sorted(set(rates[8]) & set(rates[16]) & set(rates[32]))
    assert common
    for samples in common:
        assert rates[16][samples] == pytest.approx(2**0.5 * rates[8][samples])
        assert rates[32][samples] == pytest.approx(2 * rates[8][samples])


def test_every_source_has_a_year() -> None:
    for name, kind in registry.policies().items():
        assert re.search(r"\b(19|20)\d\d\b", kind.source), f"{name}: {kind.source}"
