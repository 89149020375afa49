"""The launcher of the distributed tests tells what went wrong, and leaves no process behind."""

from __future__ import annotations

import os
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks


def _sum_of_ranks(rank: int, factor: int) -> int:
    total = torch.tensor([rank * factor])
    dist.all_reduce(total)
    return int(total)


def test_ranks_talk_and_answer_in_order():
    assert run_ranks(_sum_of_ranks, 3, 10) == [30, 30, 30]


def _fail_on_one(rank: int) -> None:
    if rank == 1:
        raise ArithmeticError("one is odd")
    dist.barrier()


def test_the_first_failure_is_shown():
    with pytest.raises(AssertionError, match=r"(?s)rank 1 failed:.*ArithmeticError: one is odd"):
        run_ranks(_fail_on_one, 2)


def _die_on_one(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    time.sleep(60)


def test_a_death_is_noticed_at_once():
    with pytest.raises(AssertionError, match="rank 1 died without an answer"):
        run_ranks(_die_on_one, 2)


def _hang(rank: int, folder) -> None:
    (folder / f"{os.getpid()}").touch()
    time.sleep(60)


def test_ranks_that_hang_are_killed(tmp_path):
    with pytest.raises(AssertionError, match="no answer in time from rank 0, 1"):
        run_ranks(_hang, 2, tmp_path, timeout_s=5)
    assert not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir())
