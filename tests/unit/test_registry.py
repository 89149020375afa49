"""Policies are found by scanning, and built from their text form."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import baselines
from baselines.cona import CONA
from baselines.fixed_best import FixedBest
from cona.errors import ConfigError
from cona.policy import Observation
from cona.registry import KINDS, policies, policy


@pytest.fixture
def own_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder whose files count as files of baselines/."""
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    policies.cache_clear()
    yield tmp_path
    policies.cache_clear()
    sys.modules.pop("baselines.mine", None)


def test_all_policies_are_found_and_described() -> None:
    found = policies()
    assert {"cona", "cona-paper", "fixed-best", "greedy-oracle", "rampup"} <= set(found)
    for name, kind in found.items():
        assert kind.name == name
        assert kind.kind in {"offline", "online", "schedule", "bound", "ablation"}
        assert "\n" not in kind.summary
        assert kind.source


def test_parameters() -> None:
    fixed = policy("fixed-best-gbs64")
    assert isinstance(fixed, FixedBest)
    assert fixed.gbs == 64
    cona = policy("cona-z1.0-cost=off-lr_rule=linear")
    assert isinstance(cona, CONA)
    assert (cona.z, cona.cost, cona.both, cona.lr_rule) == (1.0, False, True, "linear")
    assert type(policy("cona-paper")).name == "cona-paper"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("conna", "unknown policy 'conna': did you mean 'cona'"),
        ("fixed-best", "parameter 'gbs' is missing, e.g. fixed-best-gbs8"),
        ("fixed-best-bgs64", "unknown parameter 'bgs64': did you mean 'gbs'"),
        ("fixed-best-gbs8-gbs16", "parameter 'gbs' is given twice"),
        ("fixed-best-gbs", "parameter 'gbs' needs a value, e.g. gbs8"),
        ("fixed-best-gbs0", "must be between 1 and"),
        ("fixed-best-gbs=many", "gbs = many: input should be a valid integer"),
        ("cona-cost=maybe", "cost = maybe: must be on or off"),
        ("cona-lr_rule=cubic", "lr_rule = cubic: input should be"),
    ],
)
def test_bad_text_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        policy(text)


GOOD = """
class Mine:
    name, kind, summary, source = "mine", "online", "my own", "2026"
    def start(self, problem): ...
    def decide(self, observation): ...
"""


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (GOOD.replace('"online"', '"onlin"'), "mine.py: Mine: kind 'onlin': did you mean 'online'"),
        (GOOD.replace("name, kind,", "name, _,"), "Mine lacks the class attribute 'kind'"),
        (GOOD.replace("name, kind,", "_, kind,"), "Mine lacks the class attribute 'name'"),
        (GOOD.replace('"mine"', '"cona"'), "two policies are named 'cona'"),
        (GOOD.replace('"online"', '"thing"'), "kind 'thing': valid: offline, online, schedule, "),
        (GOOD + "  oops oops", "mine.py: the import failed: IndentationError: "),
        (
            "import not_installed",
            r"import failed: ModuleNotFoundError: No module named 'not_installed' \(.*mine.py:1\)$",
        ),
        ("1 / 0", r"mine.py: the import failed: ZeroDivisionError: .* \(.*mine.py:1\)$"),
    ],
)
def test_a_policy_file_that_breaks_the_contract_is_named(
    code: str, sentence: str, own_policies: Path
) -> None:
    (own_policies / "mine.py").write_text(code)
    with pytest.raises(ConfigError, match=sentence):
        policies()


def test_the_guide_names_every_kind_and_all_that_a_policy_sees() -> None:
    guide = (Path(__file__).parents[2] / "docs/extend/policy.md").read_text(encoding="utf-8")
    section = guide.partition("## Kinds\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \| \w+ ", section, re.MULTILINE)) == sorted(KINDS)
    assert {f.name for f in fields(Observation) if f"`{f.name}`" not in guide} == set()


def test_one_file_adds_a_policy(own_policies: Path) -> None:
    (own_policies / "mine.py").write_text(GOOD)
    assert type(policy("mine")).__module__ == "baselines.mine"
