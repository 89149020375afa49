"""The switch rules against decisions worked out by hand on a small table of times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import PP4, TABLE, TableTimes, estimate, observe, problem

from cona.controller import ImprovedRule, PaperRule, RuleSwitches
from cona.controller.bias import BiasCorrection
from cona.policy import Decision
from cona.specs import ControllerSpec
from cona.strategy import Layout, Strategy
from cona.surrogate import ratio

PP4_8 = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=8)
PP4_16 = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=16)
PP4_32 = Strategy(dp=1, tp=1, pp=4, mbs=1, gbs=32)
DP4_32 = Strategy(dp=4, tp=1, pp=1, mbs=1, gbs=32)


def paper_after(rule: PaperRule, iterations: int, gns: float, iteration_s: float) -> Decision:
    decision = None
    for i in range(1, iterations + 1):
        decision = rule.decide(observe(PP4_8, i, estimate(gns), iteration_s=iteration_s))
    assert decision is not None
    return decision


def test_both_start_with_the_fastest_of_the_smallest_batch() -> None:
    assert PaperRule(problem()).start() == PP4_8
    assert ImprovedRule(problem()).start() == PP4_8


# --- paper --------------------------------------------------------------------------------------
# 8 -> 16 with T 0.2 -> 0.3: GNS* = 8*16*0.1/(16*0.2 - 8*0.3) = 16 (see test_surrogate).


def test_paper_switches_above_the_crossing_only() -> None:
    rule = PaperRule(problem())
    rule.start()
    assert paper_after(rule, 8, 15.9, 0.2).strategy is None
    rule = PaperRule(problem())
    rule.start()
    decision = paper_after(rule, 8, 16.1, 0.2)
    assert decision.strategy == PP4_16
    assert decision.details["gns_star"] == pytest.approx(16)
    assert decision.details["r"] == pytest.approx(ratio(8, 0.2, 16, 0.3, 1 / 16.1))


def test_paper_compares_measured_with_modelled() -> None:
    # A model that is 20 % too fast for T_next moves the switch point: with T_cur = 0.25 measured,
    # GNS* = 8*16*(0.3 - 0.25)/(16*0.25 - 8*0.3) = 4.
    rule = PaperRule(problem())
    rule.start()
    assert paper_after(rule, 8, 5.0, 0.25).strategy == PP4_16


def test_paper_waits_for_eight_iterations() -> None:
    rule = PaperRule(problem())
    rule.start()
    assert paper_after(rule, 7, 1e6, 0.2).strategy is None


def test_paper_restarts_its_noise_scale_at_a_switch() -> None:
    rule = PaperRule(problem())
    rule.start()
    paper_after(rule, 8, 1e6, 0.2)
    seen = None
    for i in range(9, 17):
        seen = rule.decide(observe(PP4_16, i, estimate(20.0), iteration_s=0.3))
    # At gbs 16 only the new stage's 20 samples count, not the million before.
    assert seen is not None
    assert seen.details["gns"] == pytest.approx(20.0)


def test_paper_keeps_the_last_valid_noise_scale() -> None:
    rule = PaperRule(problem())
    rule.start()
    paper_after(rule, 7, 1e6, 0.2)
    negative = estimate(1e9, mu_sq=-1.0)
    decision = rule.decide(observe(PP4_8, 8, negative, iteration_s=0.2))
    assert decision.strategy == PP4_16


def test_paper_fallback_pops_the_passed_strategy() -> None:
    rule = PaperRule(problem(), fallback=True)
    rule.start()
    paper_after(rule, 8, 1e6, 0.2)
    # For 16 -> 32 GNS* = 16*32*(0.45 - 0.3)/(32*0.3 - 16*0.45) = 32.
    gns, decision, steps = 30.0, Decision(strategy=None, reason=""), 0
    while decision.strategy is None and steps < 400:
        steps += 1
        gns *= 0.999
        decision = rule.decide(observe(PP4_16, steps, estimate(gns), iteration_s=0.3))
    assert decision.strategy == PP4_8
    assert steps >= PaperRule.FALLBACK_STREAK


# --- improved -----------------------------------------------------------------------------------


def improved(
    gns: float, *, relative_se: float = 0.0, at: Strategy = PP4_8, **switches: bool
) -> Decision:
    prob = problem(controller=ControllerSpec(min_iterations=2, min_samples=16))
    rule = ImprovedRule(prob, switches=RuleSwitches(**switches))
    rule.start()
    decision = None
    # 400 s at T: the horizon is 400 s, so the switch cost of about 0.5 s hardly matters.
    for i in range(1, 4):
        seen = observe(
            at,
            i,
            estimate(gns, relative_se=relative_se),
            iteration_s=TABLE[str(at.layout), at.gbs],
            train_s=400.0,
        )
        decision = rule.decide(seen)
        if decision.strategy:
            break
    assert decision is not None
    return decision


def test_improved_takes_the_largest_net_gain_of_the_whole_ladder() -> None:
    # With infinitely noisy gradients Phi is throughput: 32/0.45 = 71 beats 16/0.30 = 53.
    assert improved(1e9).strategy == DP4_32


def test_improved_stays_below_every_crossing() -> None:
    decision = improved(2.0)
    assert decision.strategy is None
    assert decision.details["r"] is not None


def test_improved_goes_down_when_the_noise_falls() -> None:
    decision = improved(0.5, at=DP4_32)
    assert decision.strategy == PP4_8
    assert improved(0.5, at=DP4_32, both_directions=False).strategy is None


def test_improved_needs_significance() -> None:
    # a*x - c*y for 8 -> 32 at GNS 40: certain without error, not with a 100 % standard error.
    assert improved(40.0).strategy is not None
    assert improved(40.0, relative_se=1.0).strategy is None
    assert improved(40.0, relative_se=1.0, uncertainty=False).strategy is not None


def test_improved_allows_a_negative_signal() -> None:
    prob = problem(controller=ControllerSpec(min_iterations=2, min_samples=16))
    rule = ImprovedRule(prob)
    rule.start()
    very_noisy = estimate(1e4, mu_sq=-1e-9)
    decisions = [
        rule.decide(observe(PP4_8, i, very_noisy, iteration_s=0.2, train_s=400.0)).strategy
        for i in (1, 2)
    ]
    assert decisions[-1] == DP4_32


def test_improved_weighs_the_switch_cost() -> None:
    prob = problem(controller=ControllerSpec(min_iterations=2, min_samples=16))
    for on, expected in ((True, PP4_32), (False, DP4_32)):
        rule = ImprovedRule(prob, switches=RuleSwitches(cost=on))
        rule.start()
        for i in (1, 2):
            # Only 0.4 s passed since the start: the horizon is shorter than the 0.5 s of a switch
            # of layout; gbs 32 in the same layout is slower than in dp4, but free.
            seen = observe(PP4_8, i, estimate(1e9), iteration_s=0.2)
            decision = rule.decide(seen)
        assert decision.strategy == expected


def test_improved_waits() -> None:
    prob = problem(controller=ControllerSpec(min_iterations=3, min_samples=1000))
    rule = ImprovedRule(prob)
    rule.start()
    for i in range(1, 125):
        assert rule.decide(observe(PP4_8, i, estimate(1e9), iteration_s=0.2)).strategy is None
    assert rule.decide(observe(PP4_8, 125, estimate(1e9), iteration_s=0.2)).strategy is not None


def test_bias_is_shrunk_by_hand() -> None:
    pp4, dp4 = PP4_8.layout, DP4_32.layout
    bias = BiasCorrection()
    bias.begin(PP4_8)
    bias.update(PP4_8, measured_s=math.e**0.3, modelled_s=1.0)
    # One visit in pp4 with b = 0.3: unvisited layouts get exp((0*0 + 0.3)/1), pp4 the same.
    assert bias.factor(pp4) == pytest.approx(math.exp(0.3))
    assert bias.factor(dp4) == pytest.approx(math.exp(0.3))
    bias.begin(DP4_32)
    bias.update(DP4_32, measured_s=math.e**0.1, modelled_s=1.0)
    # Mean over layouts 0.2: pp4 (0.3 + 0.2)/2, an unvisited one 0.2.
    assert bias.factor(pp4) == pytest.approx(math.exp(0.25))
    assert bias.factor(Layout(dp=2, tp=1, pp=2)) == pytest.approx(math.exp(0.2))


def test_a_uniform_bias_does_not_move_the_switch_point() -> None:
    # The clock is 30 % slower than the belief everywhere; corrected, R is that of the truth.
    truth = {key: 1.3 * t for key, t in TABLE.items()}
    prob = problem(TableTimes(TABLE), controller=ControllerSpec(min_iterations=2, min_samples=16))
    for on, expected in ((True, None), (False, PP4_16)):
        rule = ImprovedRule(prob, switches=RuleSwitches(bias_correction=on, cost=False))
        rule.start()
        for i in (1, 2):
            seen = observe(PP4_8, i, estimate(12.0), iteration_s=truth[PP4, 8], train_s=100.0)
            decision = rule.decide(seen)
        # GNS 12 is below GNS* = 16; uncorrected, T_cur = 0.26 against T_next = 0.30 says switch.
        assert (decision.strategy is None) == (expected is None)


@given(gns=st.floats(0.1, 1e4), se=st.floats(0, 1), z=st.floats(0, 3))
def test_whatever_is_chosen_gains(gns: float, se: float, z: float) -> None:
    prob = problem(controller=ControllerSpec(min_iterations=1, min_samples=8))
    rule = ImprovedRule(prob, z=z)
    rule.start()
    seen = observe(PP4_8, 1, estimate(gns, relative_se=se), iteration_s=0.2, train_s=300.0)
    decision = rule.decide(seen)
    if decision.strategy is not None:
        r, net = decision.details["r"], decision.details["net_s"]
        assert isinstance(r, float)
        assert isinstance(net, float)
        assert r > 1
        assert net > 0
        assert decision.strategy != PP4_8
