"""The advisor: the rule by hand, advice that nobody follows, a state that gives the same advice."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import DP4, PP4, problem, tiny_cluster, tiny_model

from cona import registry
from cona.advisor import Advisor, SquaredNorms
from cona.errors import ConfigError
from cona.gns import GradientTerms
from cona.policy import ProbingPolicy
from cona.specs import ControllerSpec
from cona.strategy import Layout, Strategy, Techniques

AT_8 = Strategy.parse(f"{PP4}-mbs1-gbs8")
NO_WARMUP = {"clock": {"warmup_iterations": 0}}


def terms(gns: float) -> GradientTerms:
    return GradientTerms(tr_sigma=gns, mu_sq=1.0)


# --- norms ----------------------------------------------------------------------------------------


def test_terms_by_hand() -> None:
    # n = 4 gradients of 2 samples: (10 - 4)*8/3 = 16 and (4*4 - 10)/3 = 2.
    found = SquaredNorms(mean_sq=10.0, sq_of_mean=4.0, num_gradients=4).terms(gbs=8)
    assert found is not None
    assert (found.tr_sigma, found.mu_sq) == pytest.approx((16.0, 2.0))


@pytest.mark.parametrize(
    ("mean_sq", "sq_of_mean", "count"),
    [(10.0, 4.0, 1), (math.nan, 4.0, 4), (10.0, math.inf, 4), (10.0, -1.0, 4)],
)
def test_norms_that_tell_nothing_give_no_terms(
    mean_sq: float, sq_of_mean: float, count: int
) -> None:
    norms = SquaredNorms(mean_sq=mean_sq, sq_of_mean=sq_of_mean, num_gradients=count)
    assert norms.terms(gbs=8) is None


# --- advice ---------------------------------------------------------------------------------------


def test_advice_by_hand() -> None:
    # From gbs 8 (0.2 s) to 16 (0.3 s) at GNS 17: R = 0.2/0.3 * 16/8 * 25/33 = 1.0101. Two
    # iterations are warm-up, then the tier asks for two more.
    advisor = Advisor(problem(), "cona-cost=off")
    assert advisor.first == AT_8
    decisions = [advisor.observe(terms(17), seconds=0.2, strategy=AT_8) for _ in range(4)]
    assert [d.strategy for d in decisions[:3]] == [None] * 3
    assert str(decisions[3].strategy) == f"{PP4}-mbs1-gbs16"
    assert decisions[3].details["r"] == pytest.approx(50 / 49.5)
    assert advisor.gns.gns == pytest.approx(17)
    assert advisor.iteration == 4


def test_below_the_crossing_it_stays_and_says_why() -> None:
    # R = 4/3 * 23/31 = 0.9892
    advisor = Advisor(problem(), "cona-cost=off")
    for _ in range(10):
        decision = advisor.observe(terms(15), seconds=0.2, strategy=AT_8)
    assert decision.strategy is None
    assert decision.reason == "R = 0.9892 <= 1"


def test_norms_are_taken_like_terms() -> None:
    by_norms, by_terms = (Advisor(problem(), "cona-cost=off") for _ in range(2))
    norms = SquaredNorms(mean_sq=10.0, sq_of_mean=4.0, num_gradients=4)  # GNS 8
    by_norms.observe(norms, seconds=0.2, strategy=AT_8)
    by_terms.observe(GradientTerms(tr_sigma=16, mu_sq=2), seconds=0.2, strategy=AT_8)
    assert by_norms.gns == by_terms.gns


def test_a_skipped_update_is_counted_and_tells_nothing() -> None:
    advisor = Advisor(problem())
    advisor.observe(None, seconds=0.2, strategy=AT_8)
    assert (advisor.iteration, advisor.gns.gns) == (1, None)


ONLINE = [
    name
    for name, policy in registry.policies().items()
    if policy.kind == "online" and not isinstance(registry.policy(name), ProbingPolicy)
]


@pytest.mark.parametrize("policy", ONLINE)
def test_advice_may_be_ignored(policy: str) -> None:
    advisor = Advisor(problem(), policy)
    decisions = [advisor.observe(terms(500), seconds=0.2, strategy=AT_8) for _ in range(60)]
    advised = [d.strategy for d in decisions if d.strategy]
    assert AT_8 not in advised
    if policy == "cona":
        assert len(advised) > 1  # again, for nobody followed


@pytest.mark.parametrize("policy", ONLINE)
def test_a_change_without_advice_starts_the_policy_anew(policy: str) -> None:
    # As if the training had begun there, but with the noise known and less time left.
    own = Strategy.parse(f"{DP4}-mbs1-gbs32")
    advisor, fresh = Advisor(problem(**NO_WARMUP), policy), Advisor(problem(**NO_WARMUP), policy)
    for _ in range(12):
        advisor.observe(terms(1), seconds=0.2, strategy=AT_8)
    for _ in range(12):
        seen = (a.observe(terms(1), seconds=0.5, strategy=own) for a in (advisor, fresh))
        decision, expected = seen
        assert decision.reason == expected.reason
        assert decision.strategy == expected.strategy


def test_a_new_layout_is_warmed_up() -> None:
    advisor = Advisor(problem(**NO_WARMUP))
    other = Strategy.parse(f"{DP4}-mbs1-gbs32")
    warmed = Advisor(problem(clock={"warmup_iterations": 3}))
    for strategy in (AT_8, other):
        reasons = [
            a.observe(terms(1), seconds=0.2, strategy=strategy).reason for a in (advisor, warmed)
        ]
        assert reasons[0] != "warming up"
        assert reasons[1] == "warming up"


# --- the log --------------------------------------------------------------------------------------


def test_the_log_holds_what_was_weighed(tmp_path: Path) -> None:
    log = tmp_path / "advice.jsonl"
    advisor = Advisor(problem(), "cona-cost=off", log)
    for _ in range(4):
        advisor.observe(terms(17), seconds=0.2, strategy=AT_8)
    (line,) = [json.loads(text) for text in log.read_text().splitlines()]
    assert line["action"] == "switch"
    assert (line["iteration"], line["samples"]) == (4, 32)
    assert line["train_s"] == pytest.approx(0.8)
    assert (line["strategy"], line["next"]) == (str(AT_8), f"{PP4}-mbs1-gbs16")
    assert line["reason"].startswith("net gain")


# --- saving and restoring -------------------------------------------------------------------------

NOISE = st.lists(st.one_of(st.none(), st.floats(0.1, 1e3).map(terms)), min_size=2, max_size=40)


@settings(max_examples=30)
@given(NOISE, st.data())
def test_a_restored_advisor_decides_alike(
    noise: list[GradientTerms | None], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(noise) - 1))
    whole = Advisor(problem(**NO_WARMUP), "cona-cost=off")
    expected, strategy = [], whole.first
    states, used = [], []
    for one in noise:
        states.append(whole.state_dict())
        used.append(strategy)
        decision = whole.observe(one, seconds=0.2, strategy=strategy)
        expected.append(decision)
        strategy = decision.strategy or strategy
    again = Advisor(problem(**NO_WARMUP), "cona-cost=off")
    again.load_state_dict(json.loads(json.dumps(states[cut])))
    found = [
        again.observe(one, seconds=0.2, strategy=s)
        for one, s in zip(noise[cut:], used[cut:], strict=True)
    ]
    assert found == expected[cut:]
    assert again.state_dict() == whole.state_dict()


def test_a_resumed_process_warms_up_again() -> None:
    advisor = Advisor(problem(clock={"warmup_iterations": 1}))
    for _ in range(3):
        advisor.observe(terms(1), seconds=0.2, strategy=AT_8)
    twin = Advisor(problem(clock={"warmup_iterations": 1}))
    twin.load_state_dict(advisor.state_dict())
    assert twin.observe(terms(1), seconds=5.0, strategy=AT_8).reason == "warming up"


# --- settings and errors --------------------------------------------------------------------------


def test_of_builds_the_problem_from_names() -> None:
    advisor = Advisor.of(
        model=tiny_model(),
        cluster=tiny_cluster(),
        gbs=(8, 32),
        budget_s=100.0,
        layout=Layout(dp=4, tp=1, pp=1),
        techniques=Techniques(zero_stage=3),
        settings={"controller.min_samples": 64},
    )
    assert advisor.first.layout == Layout(dp=4, tp=1, pp=1)
    assert advisor.first.techniques.zero_stage == 3
    assert advisor.problem.rungs == (8, 16, 32)
    assert advisor.problem.tier.ladder.mbs_max == 4  # half the smallest batch
    limits = ControllerSpec(min_samples=64)
    assert advisor.problem.tier.controller == limits


def test_measured_times_are_believed() -> None:
    times = {AT_8: 0.25, Strategy.parse(f"{DP4}-mbs1-gbs8"): 0.125}
    advisor = Advisor.of(
        model=tiny_model(), cluster=tiny_cluster(), gbs=(8, 8), budget_s=1, times_s=times
    )
    assert advisor.problem.belief.time_s(AT_8) == 0.25
    assert advisor.problem.belief.origin(AT_8) == "measured"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_seconds_must_be_positive(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"seconds .*: an iteration takes a positive"):
        Advisor(problem()).observe(None, seconds=seconds, strategy=AT_8)


def test_a_strategy_of_other_gpus_is_refused() -> None:
    eight = Strategy.parse("dp8-tp1-pp1-mbs1-gbs8")
    with pytest.raises(ConfigError, match=r"dp8.*not the number of GPUs, 4; one that can run: dp1"):
        Advisor(problem()).observe(None, seconds=1.0, strategy=eight)


def test_a_policy_that_looks_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'greedy-oracle' looks ahead by training.*: cona"):
        Advisor(problem(), "greedy-oracle")


def test_a_state_of_another_policy_is_refused() -> None:
    state = Advisor(problem(), "cona-paper").state_dict()
    with pytest.raises(ConfigError, match=r"of policy 'cona-paper', this advisor's is 'cona'"):
        Advisor(problem()).load_state_dict(state)


def test_a_wrong_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'controller.min_sample'.*min_samples"):
        Advisor.of(
            model=tiny_model(),
            cluster=tiny_cluster(),
            gbs=(8, 16),
            budget_s=1,
            settings={"controller.min_sample": 1},
        )


def test_it_needs_no_torch() -> None:
    code = "import sys, cona.advisor; print({'torch', 'megatron'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
