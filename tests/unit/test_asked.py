"""Whatever a policy's own code raises is one sentence that says where."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import problem

from cona.asked import AskedPolicy, calling
from cona.errors import ConfigError, PolicyError, RunError
from cona.policy import STAY, Decision
from cona.strategy import Strategy

FIRST = Strategy(dp=1, tp=1, pp=1, mbs=1, gbs=8)


class Failing:
    """A user's policy: it raises, or answers, what it is given."""

    def __init__(self, error: Exception | None = None, answer: Any = STAY) -> None:
        self.error, self.answer = error, answer

    def start(self, problem: Any) -> Any:
        return self.decide(problem)

    def decide(self, observation: Any) -> Any:
        if self.error:
            raise self.error  # the line that is named
        return self.answer


LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
LINE = next(i for i, line in enumerate(LINES, start=1) if line.endswith("# the line that is named"))


def asked(**faults: Any) -> AskedPolicy:
    return AskedPolicy(Failing(**faults), "mine-x2")  # type: ignore[arg-type]


def seen() -> Any:
    return SimpleNamespace(samples=64)


@given(st.sampled_from([ValueError, KeyError, ZeroDivisionError, AssertionError]), st.text())
def test_any_error_is_one_line(kind: type[Exception], text: str) -> None:
    with pytest.raises(PolicyError) as found:
        asked(error=kind(text)).decide(seen())
    sentence = str(found.value)
    assert sentence.startswith(f"policy 'mine-x2': decide() at sample 64 failed: {kind.__name__}")
    assert re.search(rf"\(\S*test_asked\.py:{LINE}\)$", sentence)
    assert sentence.isprintable()
    assert type(found.value.__cause__) is kind


def test_start_and_the_log_are_named(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    policy = AskedPolicy(Failing(error=ValueError("no")), "mine", log)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=r"^policy 'mine': start\(\) failed: ValueError: no \("):
        policy.start(problem())
    with pytest.raises(PolicyError, match=f"; its traceback is in {log}$"):
        policy.decide(seen())


def test_the_projects_own_errors_pass() -> None:
    with pytest.raises(ConfigError, match="^gbs 3$"):
        asked(error=ConfigError("gbs 3")).start(problem())


def test_a_strategy_that_breaks_a_rule_is_the_policys_fault() -> None:
    with pytest.raises(PolicyError, match="decide.. at sample 64 failed: ConfigError: gbs 3"):
        asked(error=ConfigError("gbs 3")).decide(seen())
    with pytest.raises(RunError, match="^the disk$"):
        asked(error=RunError("the disk")).decide(seen())


def test_what_fails_in_a_look_ahead_is_no_fault_of_the_policy() -> None:
    probe: dict[str, Any] = {"__name__": "cona.measured"}
    exec("def probe(): raise RuntimeError('a rank is gone')", probe)
    with pytest.raises(RuntimeError, match="a rank is gone"), calling("policy", Failing):
        probe["probe"]()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, r"decide\(\) at sample 64 returned None; it must return a cona.policy.Decision"),
        (Decision(strategy="dp1", reason=""), r"sample 64 chose 'dp1'; .* cona.strategy.Strategy"),
        (Decision(strategy=None, reason="", details={"x": {1}}), r"64: 'x' is \{1\}, which no"),
        (Decision(strategy=None, reason="", details={"x": math.nan}), "64: 'x' is nan, which no"),
    ],
)
def test_answers_of_a_wrong_type(answer: Any, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        asked(answer=answer).decide(seen())
    with pytest.raises(PolicyError, match=r"start\(\) returned .* cona.strategy.Strategy"):
        asked(answer=answer).start(problem())


def test_good_answers_come_through() -> None:
    assert asked(answer=FIRST).start(problem()) is FIRST
    switch = Decision(strategy=FIRST, reason="why", details={"r": 1.5, "next": None})
    assert asked(answer=switch).decide(seen()) is switch
