"""A sharded checkpoint that is hit at any operation of a rank: the one before it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks
from sharded_states import load, save, save_hit

NUM_RANKS = 2
REASONS = {"full": "no space left for 2: ", "broken": "cannot write 2: Input/output error; "}


@pytest.fixture(scope="module")
def num_operations(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, ...]:
    """Return how many operations on files each rank asks for."""
    path = tmp_path_factory.mktemp("count") / "1"
    answers = run_ranks(save_hit, NUM_RANKS, path, 0, "none", 1)
    assert all(said is None and count > 3 for said, count in answers)
    return tuple(count for _, count in answers)


def check(folder: Path, rank: int, kind: str, at: int) -> None:
    """Hit a second checkpoint, and check both."""
    assert run_ranks(save, NUM_RANKS, folder / "1") == [None, None]
    if kind == "killed":
        with pytest.raises(AssertionError, match="died without an answer|closed by peer|reset by"):
            run_ranks(save_hit, NUM_RANKS, folder / "2", rank, kind, at)
    else:
        answers = run_ranks(save_hit, NUM_RANKS, folder / "2", rank, kind, at)
        said = [sentence for sentence, _ in answers]
        assert len({sentence is None for sentence in said}) == 1  # all ranks or none
        if said[0] is None:
            assert (folder / "2").exists()
        else:
            assert REASONS[kind] in said[0]
        if kind == "full":
            assert {path.name for path in folder.iterdir()} <= {"1", "2"}
    assert run_ranks(load, NUM_RANKS, folder / "1") == [True, True]
    if (folder / "2").exists():
        assert run_ranks(load, NUM_RANKS, folder / "2") == [True, True]
    assert run_ranks(save, NUM_RANKS, folder / "2") == [None, None]
    assert run_ranks(load, NUM_RANKS, folder / "2") == [True, True]


@pytest.mark.fault("SIGKILL in the middle of a write")
@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_a_rank_that_is_killed_while_it_writes(
    num_operations: tuple[int, ...], tmp_path: Path, rank: int
) -> None:
    check(tmp_path, rank, "killed", num_operations[rank] // 2)


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(NUM_RANKS))
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("killed", marks=pytest.mark.fault("SIGKILL in the middle of a write")),
        pytest.param("full", marks=pytest.mark.fault("disk full")),
        pytest.param("broken", marks=pytest.mark.fault("disk that fails")),
    ],
)
def test_a_rank_that_is_hit_at_every_operation(
    num_operations: tuple[int, ...], tmp_path: Path, rank: int, kind: str
) -> None:
    for at in range(1, num_operations[rank] + 1):
        (tmp_path / str(at)).mkdir()
        check(tmp_path / str(at), rank, kind, at)
