"""A checkpoint loads under any layout and world size, and damage to one costs only that one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_fixtures import tiny
from layouts import layouts_of
from ranks import run_ranks
from sharded_values import filled

from cona.engine.manifest import digest, read_manifest
from cona.engine.sharded_checkpoint import load_checkpoint, save_checkpoint
from cona.engine.shards import shards
from cona.errors import RunError
from cona.specs import ModelSpec
from cona.strategy import Layout

VECTORS = ("weights", "exp_avg", "exp_avg_sq")
RANDOM = torch.arange(256, dtype=torch.uint8)


def _named(buffers: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(VECTORS, buffers, strict=True))


def _scalars() -> dict:
    return {"num_updates": 7, "random": RANDOM, "scaler": {"scale": torch.tensor([2.0**12])}}


def _save(rank: int, path: Path, specs: list[ModelSpec], layout: Layout) -> None:
    for spec in specs:
        flat = filled(spec, layout, rank)
        scalars = _scalars() if rank == 0 else {}
        save_checkpoint(path / spec.name, spec.name, flat.starts, _named(flat.buffers), scalars)


def _load(rank: int, path: Path, specs: list[ModelSpec], num_ranks: int) -> None:
    for spec in specs:
        for layout in layouts_of(spec, num_ranks):
            expected = filled(spec, layout, rank)
            vectors = {
                n: torch.zeros_like(b) for n, b in zip(VECTORS, expected.buffers, strict=True)
            }
            found = load_checkpoint(path / spec.name, spec.name, expected.starts, vectors)
            for mine, theirs in zip(vectors.values(), expected.buffers, strict=True):
                assert torch.equal(mine, theirs), f"{spec.name} {layout}"
            assert found["num_updates"] == 7
            assert torch.equal(found["random"], RANDOM)
            assert found["scaler"]["scale"] == 4096


def test_saved_by_four_ranks_loaded_by_one_two_and_four(tmp_path):
    specs = [tiny("gpt", num_layers=4), tiny("llama", num_layers=4, tied_embeddings=False)]
    run_ranks(_save, 4, tmp_path, specs, Layout(dp=1, tp=2, pp=2))
    assert not list(tmp_path.glob("*.tmp"))
    for num_ranks in (1, 2, 4):
        run_ranks(_load, num_ranks, tmp_path, specs, num_ranks)


def test_saved_by_two_ranks_loaded_by_four(tmp_path):
    specs = [tiny("bert", num_layers=4)]
    run_ranks(_save, 2, tmp_path, specs, Layout(dp=1, tp=1, pp=2))
    run_ranks(_load, 4, tmp_path, specs, 4)


def test_what_several_ranks_hold_is_written_once(tmp_path):
    spec = tiny("gpt", num_layers=4)
    for layout in (Layout(dp=4, tp=1, pp=1), Layout(dp=1, tp=1, pp=4)):
        path = tmp_path / str(layout)
        path.mkdir()
        run_ranks(_save, 4, path, [spec], layout)
        sizes = {file.name: file.stat().st_size for file in path.rglob("*.distcp")}
        whole = sum(s.numel for s in shards(spec, Layout(dp=1, tp=1, pp=1), 0)) * 4 * len(VECTORS)
        overhead = 2000 * len(VECTORS) * len(shards(spec, Layout(dp=1, tp=1, pp=1), 0))
        assert whole < sum(sizes.values()) < whole + overhead
        assert len(sizes) == 4
        assert max(sizes.values()) < 0.4 * sum(sizes.values())  # the writing is shared


@pytest.fixture
def two_checkpoints(tmp_path):
    """Checkpoints 5 and 10 of one model, and one that was never finished."""
    run_ranks(_save_twice, 2, tmp_path, tiny("gpt"))
    return tmp_path


def _save_twice(rank: int, path: Path, spec: ModelSpec) -> None:
    flat = filled(spec, Layout(dp=1, tp=2, pp=1), rank)
    vectors = _named(flat.buffers)
    for name in ("5.pt", "10.pt", "10.pt"):  # a name that is there already is replaced
        save_checkpoint(path / name, spec.name, flat.starts, vectors, _scalars())
    if rank == 0:
        (path / "20.pt.tmp").mkdir()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.fault("damaged checkpoint")
def test_no_damaged_file_is_loaded(two_checkpoints):
    assert all(run_ranks(_refused_damages, 2, two_checkpoints / "10.pt", tiny("gpt")))


def _refused_damages(rank: int, folder: Path, spec: ModelSpec) -> int:
    """Damage one file after the other, in every way, and count the refusals."""
    flat = filled(spec, Layout(dp=2, tp=1, pp=1), rank)
    vectors = _named(flat.buffers)
    num_refused = 0
    for name in sorted(path.name for path in folder.iterdir()):
        file = folder / name
        for damage in (_flip, _truncate, Path.unlink):
            if name == "manifest.json" and damage is _truncate:
                continue  # the final newline carries nothing
            content = file.read_bytes()
            dist.barrier()
            if rank == 0:
                damage(file)
            dist.barrier()
            with pytest.raises(RunError, match=name):
                load_checkpoint(folder, spec.name, flat.starts, vectors)
            dist.barrier()
            if rank == 0:
                file.write_bytes(content)
            dist.barrier()
            num_refused += 1
    load_checkpoint(folder, spec.name, flat.starts, vectors)  # and whole again, it is
    return num_refused


@pytest.mark.fault("damaged checkpoint")
def test_bad_checkpoints_are_refused_by_all_ranks_together(two_checkpoints):
    (file,) = (two_checkpoints / "5.pt").glob("__1_*")
    _flip(file)
    messages = run_ranks(_refusals, 2, two_checkpoints, tiny("gpt"))
    assert messages[0] == messages[1]
    other, damaged, missing = messages[0]
    assert "holds a state of model 'tiny-gpt', but model 'another' is to continue" in other
    assert "__1_0.distcp is not what was written" in damaged
    assert "no manifest.json that is intact" in missing


def _refusals(rank: int, folder: Path, spec: ModelSpec) -> list[str]:
    flat = filled(spec, Layout(dp=2, tp=1, pp=1), rank)
    vectors = _named(flat.buffers)
    messages = []
    for name, model in (("10.pt", "another"), ("5.pt", spec.name), ("7.pt", spec.name)):
        with pytest.raises(RunError) as caught:
            load_checkpoint(folder / name, model, flat.starts, vectors)
        messages.append(str(caught.value))
    return messages


def test_a_folder_that_cannot_be_written_stops_all_ranks(tmp_path):
    messages = run_ranks(_unwritable, 2, tmp_path / "missing" / "5.pt", tiny("gpt"))
    assert all("missing: cannot write 5.pt: No such file" in message for message in messages)


def _unwritable(rank: int, path: Path, spec: ModelSpec) -> str:
    flat = filled(spec, Layout(dp=2, tp=1, pp=1), rank)
    vectors = _named(flat.buffers)
    with pytest.raises(RunError) as caught:
        save_checkpoint(path, spec.name, flat.starts, vectors, {})
    return str(caught.value)


class _Code:
    """Unpickling it would run ``print``."""

    def __reduce__(self):
        return print, ("ran",)


def test_metadata_that_would_run_code_is_refused(two_checkpoints, capfd):
    """Even with a manifest that agrees: whoever writes one can write the other."""
    path = two_checkpoints / "10.pt"
    (path / ".metadata").write_bytes(pickle.dumps(_Code()))
    manifest = read_manifest(path)
    manifest.files[".metadata"] = digest(path / ".metadata")
    manifest.write(path)
    (message,) = run_ranks(_refused_load, 1, path, tiny("gpt"))
    assert "builtins.print does not describe a tensor" in message
    assert "ran" not in capfd.readouterr().out


def _refused_load(rank: int, path: Path, spec: ModelSpec) -> str:
    flat = filled(spec, Layout(dp=1, tp=1, pp=1), rank)
    vectors = _named(flat.buffers)
    with pytest.raises(RunError) as caught:
        load_checkpoint(path, spec.name, flat.starts, vectors)
    assert dist.get_world_size() == 1
    return str(caught.value)


@pytest.mark.fault("damaged checkpoint")
def test_no_flipped_bit_of_a_manifest_passes(two_checkpoints):
    path = two_checkpoints / "10.pt"
    file = path / "manifest.json"
    content = file.read_bytes()
    for index in range(len(content)):
        for bit in (0x01, 0x10):
            flipped = bytearray(content)
            flipped[index] ^= bit
            if _same_json(flipped, content):
                continue  # white space
            file.write_bytes(flipped)
            with pytest.raises(RunError):
                read_manifest(path)


def _same_json(first: bytes, second: bytes) -> bool:
    try:
        return json.loads(first) == json.loads(second)
    except ValueError:
        return False
