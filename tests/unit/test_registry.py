"""Policies are found by scanning, and built from their text form."""

from __future__ import annotations

import pytest

from baselines.cona import CONA
from baselines.fixed_best import FixedBest
from cona.errors import ConfigError
from cona.registry import policies, policy


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
        ("fixed-best-gbs0", "must be at least 1"),
        ("fixed-best-gbs=many", "gbs = many: input should be a valid integer"),
        ("cona-cost=maybe", "cost = maybe: input should be a valid boolean"),
        ("cona-lr_rule=cubic", "lr_rule = cubic: input should be"),
    ],
)
def test_bad_text_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        policy(text)
