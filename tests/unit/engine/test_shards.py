"""Shards are what megatron's modules hold, and together they are the model, each element once."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest
from engine_fixtures import FAMILIES, tiny
from hypothesis import given
from hypothesis import strategies as st
from layouts import layouts_of

from cona.config import load, names
from cona.engine.models import build_model
from cona.engine.shards import Box, shards
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import Layout

ALONE = Layout(dp=1, tp=1, pp=1)
MODELS = [(family, tied) for family in FAMILIES for tied in (True, False)]


@pytest.mark.parametrize(("family", "tied"), MODELS)
def test_one_rank_holds_what_megatron_builds(family, tied):
    spec = tiny(family, tied_embeddings=tied)
    parameters = dict(build_model(spec, seed=0).named_parameters())
    held = {shard.local_name: shard for shard in shards(spec, ALONE, 0)}
    assert list(held) == list(parameters)
    for name, parameter in parameters.items():
        shard = held[name]
        assert shard.name == name
        assert shard.numel == parameter.numel()
        assert shard.shape[-1] == parameter.shape[-1]
        assert shard.is_decayed == (parameter.dim() > 1)
        assert shard.is_counted


@pytest.mark.parametrize("name", names(ModelSpec))
def test_configured_models_have_all_their_parameters(name):
    spec = load(ModelSpec, name)
    assert sum(shard.numel for shard in shards(spec, ALONE, 0)) == spec.num_params


@st.composite
def spread_models(draw):
    family, tied = draw(st.sampled_from(MODELS))
    spec = tiny(family, num_layers=4, tied_embeddings=tied)
    return spec, draw(st.sampled_from(layouts_of(spec, draw(st.integers(1, 16)))))


@given(spread_models())
def test_every_element_is_counted_once_per_replica(model_and_layout):
    spec, layout = model_and_layout
    times_counted = {s.name: np.zeros(s.global_shape, int) for s in shards(spec, ALONE, 0)}
    times_held = {name: counts.copy() for name, counts in times_counted.items()}
    for rank in range(layout.num_gpus):
        for shard in shards(spec, layout, rank):
            times_held[shard.name][_slices(shard)] += 1
            times_counted[shard.name][_slices(shard)] += shard.is_counted
    for name, counts in times_counted.items():
        assert (counts == layout.dp).all(), name
        assert (times_held[name] >= layout.dp).all(), name


@given(spread_models())
def test_boxes_of_a_tensor_are_equal_or_disjoint(model_and_layout):
    spec, layout = model_and_layout
    boxes = defaultdict(set)
    for rank in range(layout.num_gpus):
        held = shards(spec, layout, rank)
        assert len({s.name for s in held}) == len({s.local_name for s in held}) == len(held)
        for shard in held:
            boxes[shard.name].add(shard.box)
    for found in boxes.values():
        assert not any(a.common(b) for a in found for b in found if a != b)


def test_a_stage_counts_its_own_layers_from_zero():
    spec = tiny("gpt", num_layers=4)
    held = shards(spec, Layout(dp=1, tp=2, pp=2), 3)
    by_local = {shard.local_name: shard for shard in held}
    qkv = by_local["decoder.layers.1.self_attention.linear_qkv.weight"]
    assert qkv.name == "decoder.layers.3.self_attention.linear_qkv.weight"
    assert (qkv.global_shape, qkv.offset, qkv.shape) == ((96, 32), (48, 0), (48, 32))
    tied = by_local["output_layer.weight"]
    assert (tied.name, tied.offset) == ("embedding.word_embeddings.weight", (64, 0))
    assert not tied.is_counted  # the first stage counts it
    assert not by_local["decoder.final_layernorm.weight"].is_counted  # slice 0 counts it


def test_llama_s_gate_and_up_projection_are_split_for_themselves():
    spec = tiny("llama")
    held = {s.local_name: s for s in shards(spec, Layout(dp=1, tp=2, pp=1), 1)}
    stack = held["decoder.layers.0.mlp.linear_fc1.weight"]
    assert (stack.global_shape, stack.offset, stack.shape) == ((2, 48, 32), (0, 24, 0), (2, 24, 32))


boxes = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=3).map(
    lambda sides: Box(tuple(o for o, _ in sides), tuple(n for _, n in sides))
)


@given(boxes, st.integers(1, 40))
def test_cutting_keeps_every_element_in_row_major_order(box, most):
    pieces = list(box.cut(most))
    assert all(piece.numel <= most for piece in pieces)
    grid = np.arange(math.prod(o + n for o, n in zip(*box, strict=True))).reshape(
        [o + n for o, n in zip(*box, strict=True)]
    )
    together = [i for piece in pieces for i in grid[_slices(piece)].flatten()]
    assert together == list(grid[_slices(box)].flatten())


@given(
    boxes.flatmap(lambda a: st.tuples(st.just(a), boxes.filter(lambda b: len(b[0]) == len(a[0]))))
)
def test_common_box_holds_the_common_elements(pair):
    covered = np.zeros((12,) * len(pair[0].offset), int)
    for box in pair:
        covered[_slices(box)] += 1
    both = np.zeros_like(covered)
    if common := pair[0].common(pair[1]):
        both[_slices(common)] = 1
    assert ((covered == 2) == both).all()


def _slices(box):
    return tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))


def test_layouts_and_ranks_that_do_not_exist_are_refused():
    spec = tiny("llama")
    with pytest.raises(ConfigError, match=r"rank 2: layout dp2-tp1-pp1 has ranks 0 to 1"):
        shards(spec, Layout(dp=2, tp=1, pp=1), 2)
    with pytest.raises(ConfigError, match="num_kv_heads 2 is not divisible by tp 4"):
        shards(spec, Layout(dp=1, tp=4, pp=1), 0)


def test_shards_and_plans_need_no_torch():
    code = "import sys, cona.engine.transfers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
