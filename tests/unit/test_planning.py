"""Batch sizes that the GPUs' layouts divide: default ladders, and the nearest valid ones."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, given
from hypothesis import strategies as st

from cona import cli, config
from cona.errors import ConfigError
from cona.planning import (
    Choices,
    Spaces,
    at_gbs_min,
    candidates,
    ladder,
    search_spaces,
    why_indivisible,
)
from cona.specs import LARGEST_GBS, LadderSpec, ModelSpec
from cona.strategy import StrategySpace

LLAMA = config.load(ModelSpec, "llama-3.2-1b")
"""Sixteen layers, eight heads of keys and values: tp and pp are powers of two."""

gpus = st.integers(1, 300)
batches = st.integers(1, 2000)


def spaces_of(num_gpus: int) -> Spaces:
    return search_spaces(LLAMA, num_gpus, mbs_max=32, choices=Choices())


def planned(*arguments: str) -> Result:
    fixed = ("plan", "--model", "llama-3.2-1b", "--cluster", "dgx-h100@3")
    return CliRunner().invoke(cli.main, [*fixed, *arguments])


def test_twenty_four_gpus_name_the_nearest_batch_sizes() -> None:
    failed = planned("--gbs", "256")
    assert failed.exit_code == 2
    assert failed.stderr == (
        "Error: gbs 256: no layout of 24 GPUs divides it: dp, and so gbs, must be a multiple of 3; "
        "nearest: gbs 255, or 192 (3 x 64)\n"
    )
    assert planned("--gbs", "255").exit_code == 0
    assert "must be a multiple of 3" in planned("--gbs", "8", "--planner", "galvatron").stderr


def test_a_ladder_without_bounds_begins_where_the_gpus_have_layouts() -> None:
    assert re.findall(r"-gbs(\d+)  ", planned("--ladder").stdout) == [
        *("12", "24", "48", "96", "192", "384")
    ]
    assert ladder(spaces_of(24), None, None) == (12, 24, 48, 96, 192, 384)
    assert ladder(spaces_of(4), None, None) == (8, 16, 32, 64, 128, 256)
    assert ladder(spaces_of(4), 512, None) == (512, 1024, 2048, 4096, 8192, 16384)
    assert ladder(spaces_of(4), None, 16) == (8, 16)


def test_a_ladder_ends_at_the_largest_batch_there_is() -> None:
    assert ladder(spaces_of(1), LARGEST_GBS // 2, None) == (LARGEST_GBS // 2, LARGEST_GBS)
    assert ladder(spaces_of(1), LARGEST_GBS, None) == (LARGEST_GBS,)


@given(gpus)
def test_every_rung_of_a_default_ladder_has_a_layout(num_gpus: int) -> None:
    spaces = spaces_of(num_gpus)
    rungs = ladder(spaces, None, None)
    assert rungs[0] >= 8
    assert all(candidates(spaces, gbs) for gbs in rungs)


@given(gpus, batches)
def test_the_nearest_batch_sizes_work_and_none_is_nearer(num_gpus: int, gbs: int) -> None:
    spaces = spaces_of(num_gpus)
    assume(not candidates(spaces, gbs))
    named = re.search(
        r"nearest: gbs (\d+)(?:, or (\d+) \((\d+) x (\d+)\))?$",
        text := (why_indivisible(spaces, gbs)),
    )
    assert named, text
    nearest, doubled, dp, times = (int(part) if part else None for part in named.groups())
    assert candidates(spaces, nearest)
    distance = abs(nearest - gbs)
    between = range(max(1, gbs - distance + 1), gbs + distance)
    assert not any(candidates(spaces, size) for size in between)
    if doubled:
        assert candidates(spaces, doubled)
        assert (doubled, times.bit_count()) == (dp * times, 1)


def test_the_smallest_batch_of_a_ladder_names_the_nearest_that_divides() -> None:
    space = StrategySpace(model=LLAMA, num_gpus=24, ladder=LadderSpec())
    with pytest.raises(ConfigError, match=r"ladder\.gbs_min 8: .* multiple of 3; nearest: gbs 9"):
        at_gbs_min(space)
    space = StrategySpace(model=LLAMA, num_gpus=4, ladder=LadderSpec())
    assert at_gbs_min(space) == space.at(8)
