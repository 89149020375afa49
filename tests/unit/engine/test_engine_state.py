"""Snapshots and checkpoints: what continues is bit-identical, what does not belong is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from engine_fixtures import FAMILIES, random_batch, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from cona.engine.megatron import build_engine
from cona.errors import RunError


def _steps(engine, first: int, last: int) -> list:
    """Train on the batches first..last-1; the stats hold every bit of the losses and norms."""
    batches = [random_batch(engine.spec, 8, seed=i) for i in range(first, last)]
    return [engine.train_step(b, exec_mbs=4, lr=1e-2) for b in batches]


def _same(a, b) -> bool:
    tensors = [(x.flat.weights, *x.flat.moments, x.rng) for x in (a, b)]
    equal = all(torch.equal(p, q) for p, q in zip(*tensors, strict=True))
    return equal and a.flat.num_updates == b.flat.num_updates


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("family", FAMILIES)
def test_restore_continues_bit_identically(family, dropout):
    engine = build_engine(tiny(family, dropout=dropout), seed=0)
    _steps(engine, 0, 3)
    fork = engine.snapshot()
    expected, end = _steps(engine, 3, 6), engine.snapshot()
    engine.restore(fork)
    _steps(engine, 10, 12)  # another future, which must leave no trace
    engine.restore(fork)
    assert _same(engine.snapshot(), fork)
    assert _steps(engine, 3, 6) == expected
    assert _same(engine.snapshot(), end)


def test_a_snapshot_does_not_follow_the_engine():
    engine = build_engine(tiny("gpt"), seed=0)
    before = engine.snapshot()
    weights = before.flat.weights.clone()
    _steps(engine, 0, 2)
    assert torch.equal(before.flat.weights, weights)
    assert before.flat.num_updates == 0


def test_dropout_draws_from_the_engine_s_own_stream():
    first, second = (build_engine(tiny("gpt", dropout=0.2), seed=0) for _ in range(2))
    torch.manual_seed(1)
    outside = torch.get_rng_state()
    expected = _steps(first, 0, 3)
    assert torch.equal(torch.get_rng_state(), outside)
    torch.manual_seed(99)
    assert _steps(second, 0, 3) == expected
    plain = build_engine(tiny("gpt"), seed=0)
    assert _steps(plain, 0, 1) != expected[:1]


def test_load_in_another_process_continues_bit_identically(tmp_path):
    engine = build_engine(tiny("gpt", dropout=0.2), seed=0)
    _steps(engine, 0, 3)
    engine.save(tmp_path / "state")
    expected, end = _steps(engine, 3, 6), engine.snapshot()
    script = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from engine_fixtures import tiny
        from test_engine_state import _steps
        from cona.engine.megatron import build_engine
        engine = build_engine(tiny("gpt", dropout=0.2), seed=1)
        folder = Path({str(tmp_path)!r})
        engine.load(folder / "state")
        (folder / "stats").write_text(repr(_steps(engine, 3, 6)))
        engine.save(folder / "end")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    assert (tmp_path / "stats").read_text() == repr(expected)
    engine.load(tmp_path / "end")
    assert _same(engine.snapshot(), end)


def test_save_replaces_whole_files_and_leaves_nothing_else(tmp_path):
    engine = build_engine(tiny("gpt"), seed=0)
    path = tmp_path / "state"
    for i in range(2):
        _steps(engine, i, i + 1)
        engine.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    end = engine.snapshot()
    _steps(engine, 5, 6)
    engine.load(path)
    assert _same(engine.snapshot(), end)


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 64}, {"norm_eps": 1e-6}, {"name": "x"}, {"training.adam_beta2": 0.9}],
)
def test_another_model_s_state_is_refused(tmp_path, changes):
    engine, other = build_engine(tiny("gpt"), seed=0), build_engine(tiny("gpt", **changes), seed=0)
    other.save(tmp_path / "state")
    before = engine.snapshot()
    with pytest.raises(RunError, match=r"state of model .*, but model 'tiny-gpt "):
        engine.load(tmp_path / "state")
    assert _same(engine.snapshot(), before)


def test_only_the_prose_of_a_model_may_change(tmp_path):
    saved = build_engine(tiny("gpt"), seed=0)
    saved.save(tmp_path / "state")
    changed = tiny("gpt", description="other words", source="elsewhere", priced_as="gpt3-1.3b")
    loaded = build_engine(changed, seed=1)
    assert not _same(loaded.snapshot(), saved.snapshot())
    loaded.load(tmp_path / "state")
    assert _same(loaded.snapshot(), saved.snapshot())


def test_a_missing_state_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"nowhere: No such file"):
        build_engine(tiny("gpt"), seed=0).load(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    engine = build_engine(tiny("gpt"), seed=0)
    path = tmp_path_factory.mktemp("states") / "state"
    engine.save(path)
    return engine, path, path.read_bytes()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.fault("damaged snapshot")
def test_a_damaged_state_is_refused(saved, data):
    engine, path, intact = saved
    position = data.draw(st.integers(0, len(intact) - 1))
    if data.draw(st.booleans(), label="truncate"):
        damaged = intact[:position]
    else:
        flipped = intact[position] ^ data.draw(st.integers(1, 255))
        damaged = intact[:position] + bytes([flipped]) + intact[position + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(RunError, match="damaged"):
        engine.load(path)
