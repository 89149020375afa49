"""A plan delivers what every rank lacks, once, from ranks that hold it, and shares the sending."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from engine_fixtures import FAMILIES, tiny
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layouts import layouts_of

from cona.config import load
from cona.cost.state import lacking_params
from cona.engine import transfers
from cona.engine.shards import shards, shards_at
from cona.engine.transfers import SMALLEST_CUT, plan
from cona.errors import ConfigError
from cona.specs import ModelSpec
from cona.strategy import Layout

MODELS = [(family, tied) for family in FAMILIES for tied in (True, False)]


@st.composite
def switches(draw):
    """A small model and two layouts of 1 to 16 ranks; big enough that pieces are cut, at times."""
    family, tied = draw(st.sampled_from(MODELS))
    heads = {"num_heads": 12, "num_kv_heads": 6 if family == "llama" else 12, "hidden_size": 48}
    sizes = {"num_layers": 12, "vocab_size": 384, "tp_max": draw(st.sampled_from([1, 3]))}
    spec = tiny(family, tied_embeddings=tied, **heads, **sizes)
    choices = layouts_of(spec, draw(st.integers(1, 16)))
    return spec, draw(st.sampled_from(choices)), draw(st.sampled_from(choices))


def _slices(box):
    return tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))


def _held(spec, layout, rank):
    """Return boolean masks of what a rank holds, by tensor."""
    masks = {}
    for shard in shards(spec, layout, rank):
        masks[shard.name] = np.zeros(shard.global_shape, bool)
        masks[shard.name][_slices(shard)] = True
    return masks


@given(switches())
@settings(max_examples=60)
def test_what_a_rank_lacks_arrives_once_from_a_rank_that_holds_it(switch):
    spec, old, new = switch
    before, after = (
        [_held(spec, layout, rank) for rank in range(old.num_gpus)] for layout in (old, new)
    )
    arrived = [{name: np.zeros(m.shape, int) for name, m in masks.items()} for masks in after]
    for source, target, name, box in plan(spec, old, new).transfers:
        assert source != target
        assert before[source][name][_slices(box)].all()
        arrived[target][name][_slices(box)] += 1
    for rank in range(new.num_gpus):
        for name, needed in after[rank].items():
            lacking = needed & ~before[rank].get(name, np.zeros_like(needed))
            assert (arrived[rank][name] == lacking).all()


@given(switches())
def test_moved_elements_are_the_lower_bound(switch):
    spec, old, new = switch
    received = [0] * new.num_gpus
    for transfer in plan(spec, old, new).transfers:
        received[transfer.target] += transfer.box.numel
    assert received == [plan(spec, old, new).num_lacking(rank) for rank in range(new.num_gpus)]


@given(switches())
def test_cost_model_counts_the_same_parameters(switch):
    """It thinks a matrix in slices [t/tp, (t+1)/tp): exactly the shards'."""
    spec, old, new = switch
    for rank in range(new.num_gpus):
        predicted = lacking_params(rank, old, new, spec)
        assert plan(spec, old, new).num_lacking(rank) == pytest.approx(predicted, abs=1e-6)


def _sent(found, num_ranks) -> list[int]:
    sent = [0] * num_ranks
    for transfer in found.transfers:
        sent[transfer.source] += transfer.box.numel
    return sent


def _forced_share(spec, old, found) -> float:
    """Return what some rank must send at least: pieces over the only ranks that hold them."""
    holders = defaultdict(set)
    for rank in range(old.num_gpus):
        for shard in shards(spec, old, rank):
            holders[shard.name, shard.box].add(rank)
    load: dict[frozenset[int], int] = defaultdict(int)
    for _, _, name, box in found.transfers:
        (owners,) = (r for (n, b), r in holders.items() if n == name and b.common(box))
        load[frozenset(owners)] += box.numel
    groups: Iterable[frozenset[int]] = [*load, frozenset(range(old.num_gpus))]
    return max(sum(n for s, n in load.items() if s <= group) / len(group) for group in groups)


@given(switches())
@settings(max_examples=40)
def test_no_rank_sends_much_more_than_it_must(switch):
    """Groups of holders are nested or disjoint, except a tied table's: there greedy is optimal up
    to one piece. With a tied table it may be off by that table's share."""
    spec, old, new = switch
    found = plan(spec, old, new)
    assume(found.transfers)
    piece = max(transfer.box.numel for transfer in found.transfers)
    is_nested = not spec.tied_embeddings or old.pp == 1 or old.tp == 1
    slack = piece if is_nested else piece + _forced_share(spec, old, found)
    assert max(_sent(found, old.num_gpus)) <= _forced_share(spec, old, found) + slack


@given(switches())
def test_pieces_are_fine(switch):
    spec, old, new = switch
    found = plan(spec, old, new)
    mean = sum(_sent(found, old.num_gpus)) / old.num_gpus
    limit = max(mean / transfers.FINENESS, SMALLEST_CUT)
    assert all(transfer.box.numel <= limit for transfer in found.transfers)


def test_replicas_share_the_sending_evenly():
    """Each rank of tp2dp2 lacks one half, which two others hold: each sends half a model."""
    spec = tiny("gpt")
    found = plan(spec, Layout(dp=2, tp=2, pp=1), Layout(dp=4, tp=1, pp=1))
    sent = _sent(found, 4)
    assert max(sent) / min(sent) < 1.05
    assert {(t.source - t.target) % 2 for t in found.transfers} == {1}


def test_nothing_moves_when_every_rank_has_it_all():
    spec = tiny("bert")
    assert not plan(spec, Layout(dp=4, tp=1, pp=1), Layout(dp=1, tp=2, pp=2)).transfers


def test_the_plan_is_the_same_in_every_process():
    spec = tiny("llama", num_layers=4)
    layouts = Layout(dp=2, tp=2, pp=2), Layout(dp=8, tp=1, pp=1)
    first = plan(spec, *layouts)
    plan.cache_clear()
    shards_at.cache_clear()
    assert plan(spec, *layouts) == first


@pytest.mark.parametrize("name", ["gpt3-1.3b", "bert-large"])
def test_a_plan_for_64_ranks_takes_a_moment(name):
    spec = load(ModelSpec, name)
    plan.cache_clear()
    shards_at.cache_clear()
    start_s = time.process_time()
    found = plan(spec, Layout(dp=8, tp=8, pp=1), Layout(dp=64, tp=1, pp=1))
    assert time.process_time() - start_s < 4.0  # 0.7 s alone on the machine
    assert max(_sent(found, 64)) == min(_sent(found, 64))


def test_another_number_of_ranks_is_refused():
    with pytest.raises(ConfigError, match="changes the number of ranks from 4 to 2"):
        plan(tiny("gpt"), Layout(dp=4, tp=1, pp=1), Layout(dp=2, tp=1, pp=1))
