"""DeepSpeed is told truly how tensor parallelism cuts each parameter."""

from __future__ import annotations

import re

import pytest
import torch
from engine_fixtures import FAMILIES, tiny
from torch import nn

from cona.engine import universal
from cona.engine.shards import shards
from cona.errors import ConfigError
from cona.strategy import Layout


def _described(spec, tp: int, rank: int) -> tuple[dict, dict]:
    """Return the description of one rank's module and its parameters by shard."""
    layout = Layout(dp=1, tp=tp, pp=1)
    parameters = {s: nn.Parameter(torch.zeros(s.shape)) for s in shards(spec, layout, rank)}
    module = nn.Module()
    universal.describe(module, spec, parameters, tp)
    return module.universal_checkpoint_info, parameters


def _merge(info: dict, name: str, slices: list[torch.Tensor]) -> torch.Tensor:
    """Join slices as DeepSpeed's converter documents it."""

    def is_in(kind: str) -> bool:
        return any(re.match(pattern, universal.PREFIX + name) for pattern in info[kind])

    if is_in("tp_replicated_parameter_patterns"):
        return slices[0]
    if is_in("parameter_with_2_sub_params_cat_dim_0"):
        halves = [piece.chunk(2) for piece in slices]
        return torch.cat([torch.cat([half[i] for half in halves]) for i in range(2)])
    return torch.cat(slices, dim=1 if is_in("parameter_with_row_parallelism_patterns") else 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tp", [1, 2])
def test_slices_merge_to_the_whole_tensor(family, tp):
    spec = tiny(family)
    info, whole_shards = _described(spec, tp, 0)
    per_rank = [list(shards(spec, Layout(dp=1, tp=tp, pp=1), rank)) for rank in range(tp)]
    for pieces in zip(*per_rank, strict=True):
        whole = torch.arange(pieces[0].numel * tp * 4.0)[: _numel(pieces[0])]
        whole = whole.view(pieces[0].global_shape)
        slices = [_as_parameter(_cut(whole, shard)) for shard in pieces]
        merged = _merge(info, pieces[0].local_name, slices)
        assert torch.equal(merged, _as_parameter(whole)), pieces[0].name
    assert len(whole_shards) == len(per_rank[0])


def _numel(shard) -> int:
    return torch.Size(shard.global_shape).numel()


def _cut(whole: torch.Tensor, shard) -> torch.Tensor:
    box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.shape, strict=True))
    return whole[box]


def _as_parameter(tensor: torch.Tensor) -> torch.Tensor:
    """A stack of two matrices is one parameter."""
    return tensor.flatten(0, 1) if tensor.dim() == 3 else tensor


def test_stage_3_is_told_the_halves_of_a_stack():
    spec = tiny("llama")
    _, parameters = _described(spec, 2, 1)
    stacks = {s: p for s, p in parameters.items() if len(s.global_shape) == 3}
    cut = next(iter(stacks.values())).ds_autotp_universal_checkpoint_meta
    assert len(stacks) == spec.num_layers
    assert cut["logical_shape"] == (96, 32)
    assert cut["sub_param_shard_widths"] == [[24, 24], [24, 24]]


def test_only_stage_3_refuses_to_cut_what_was_whole():
    whole, cut = Layout(dp=2, tp=1, pp=1), Layout(dp=1, tp=2, pp=1)
    universal.check_universal(2, whole, cut)
    universal.check_universal(3, cut, whole)
    with pytest.raises(ConfigError, match=r"stage 3 .* nearest: zero_stage 2"):
        universal.check_universal(3, whole, cut)


@pytest.mark.slow  # it starts DeepSpeed's converter
def test_a_failed_conversion_says_why(tmp_path):
    error = universal.convert(tmp_path, "state")
    assert error is not None
    assert "could not convert" in str(error)
    assert len(str(error).splitlines()) == 1
