"""result.json knows its own checksum: nothing in it changes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_runs import write_tier
from hypothesis import given
from hypothesis import strategies as st

from cona.analysis.load import load_run
from cona.errors import RunError
from cona.result import HASH, is_intact, sealed
from cona.run_folder import damage, finished
from cona.runlog import sha256

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
contents = st.dictionaries(st.text(max_size=8).filter(lambda key: key != HASH), values, min_size=1)


@given(facts=contents)
def test_what_was_written_is_intact_in_any_order_and_spacing(facts: dict[str, object]) -> None:
    written = json.loads(json.dumps(sealed(facts), indent=7))
    assert is_intact(written)
    assert is_intact(dict(reversed(written.items())))
    assert list(sealed(facts))[-1] == HASH


@given(facts=contents, data=st.data())
def test_a_change_is_no_longer_intact(facts: dict[str, object], data: st.DataObject) -> None:
    written = sealed(facts)
    key = data.draw(st.sampled_from(list(written)))
    other = data.draw(values.filter(lambda value: json.dumps(value) != json.dumps(written[key])))
    assert not is_intact({**written, key: other})
    del written[key]
    assert not is_intact(written)


def test_what_is_no_number_is_not_intact() -> None:
    assert not is_intact({"ppl": float("nan"), HASH: "0"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the result of a run that says who it is; its metrics fit."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"kind":"step"}\n')
    facts = {"schema": 1, "run_key": "k", "ppl": 12.5, "metrics_sha256": sha256(metrics)}
    (tmp_path / "result.json").write_text(json.dumps(sealed(facts)))
    return tmp_path / "result.json"


def test_an_intact_result_of_the_same_settings_is_finished(path: Path) -> None:
    assert damage(path) is None
    assert finished(path, "k")
    assert not finished(path, "other")
    path.unlink()
    assert damage(path) is None
    assert not finished(path, "k")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("12.5", "12.4", "result.json is damaged: it does not match its checksum"),
        ("}", "", "result.json is damaged: not JSON"),
        ('"schema": 1', '"schema": 0', "result.json is of another version of cona"),
        (HASH, "other", "result.json is of another version of cona"),
    ],
)
def test_a_damaged_result_says_what_is_wrong(path: Path, old: str, new: str, reason: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    assert damage(path) == reason
    assert not finished(path, "k")


def test_metrics_that_do_not_fit_are_said(path: Path) -> None:
    metrics = path.with_name("metrics.jsonl")
    metrics.write_text('{"kind":"eval"}\n')
    assert "metrics.jsonl is damaged" in (damage(path) or "")
    metrics.unlink()
    assert damage(path) == "metrics.jsonl is missing"


def test_tables_refuse_a_result_that_is_not_what_was_written(tmp_path: Path) -> None:
    write_tier(tmp_path, models=("gpt3-1.3b-proxy",))
    path = next(tmp_path.rglob("result.json"))
    whole = sealed(json.loads(path.read_text()))
    path.write_text(json.dumps(whole))
    assert load_run(path.parent).result == whole
    path.write_text(json.dumps({**whole, "samples": whole["samples"] + 1}))
    with pytest.raises(RunError, match=r"result\.json: does not match its checksum; delete it"):
        load_run(path.parent)
