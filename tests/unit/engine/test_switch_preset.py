"""The modelled clock's `live` preset counts the bytes that the live switch really moves."""

from __future__ import annotations

from itertools import permutations

import pytest

from cona import config
from cona.cost.state import BYTES_PER_PARAM
from cona.cost.switch import SwitchCost
from cona.engine.transfers import plan
from cona.specs import ClusterSpec, LadderSpec, ModelSpec
from cona.strategy import StrategySpace


@pytest.mark.parametrize("name", ["gpt3-1.3b", "bert-large", "llama-3.2-1b"])
def test_the_preset_counts_what_the_neediest_rank_lacks(name: str) -> None:
    spec = config.load(ModelSpec, name)
    cost = SwitchCost(spec, config.load(ClusterSpec, "a100x4-2node"))
    layouts = StrategySpace(model=spec, num_gpus=4, ladder=LadderSpec()).layouts
    for old, new in permutations(layouts, 2):
        moves = plan(spec, old, new)
        lacking = max(moves.num_lacking(rank) for rank in range(4))
        assert cost.lacking_bytes(old, new) == pytest.approx(BYTES_PER_PARAM * lacking, rel=1e-9)
