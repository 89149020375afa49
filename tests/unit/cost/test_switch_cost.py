"""Switch costs: by hand on a small model, against a brute-force count, and the presets."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import pytest
from cost_cases import GPT, INTRA, MODELS, ONE_NODE, PAPER, model_spec, strategy
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import SwitchCost
from cona.cost.state import blocks, lacking_params, names_on
from cona.errors import ConfigError
from cona.specs import LadderSpec
from cona.strategy import Layout, StrategySpace

SMALL = model_spec(
    num_layers=4, hidden_size=8, num_heads=4, ffn_size=32, vocab_size=1024, seq_length=16, tp_max=4
)
# by hand, GPT with h 8, f 32: 4*64 + 2*8*32 + 3*8 + 32 = 824 weights are split, 6*8 = 48 are not
SPLIT, WHOLE = 824, 48
TABLE, POSITIONS, NORM = 1024 * 8, 16 * 8, 2 * 8


def layout(dp: int, tp: int, pp: int) -> Layout:
    return Layout(dp=dp, tp=tp, pp=pp)


def lacking(old: tuple[int, int, int], new: tuple[int, int, int], model=SMALL) -> list[float]:
    one, two = layout(*old), layout(*new)
    return [lacking_params(rank, one, two, model) for rank in range(one.num_gpus)]


def test_a_replica_lacks_nothing() -> None:
    for new in ((4, 1, 1), (1, 4, 1), (1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 1)):
        assert lacking((4, 1, 1), new) == [0, 0, 0, 0]


def test_pipeline_to_replicas() -> None:
    layer = SPLIT + WHOLE
    assert lacking((1, 1, 4), (4, 1, 1)) == [
        3 * layer + NORM,  # stage 0 had layer 0, the table and the positions
        3 * layer + TABLE + POSITIONS + NORM,
        3 * layer + TABLE + POSITIONS + NORM,
        3 * layer + POSITIONS,  # the last stage had a copy of the tied table, and the final norm
    ]


def test_tensor_slices_to_replicas() -> None:
    # each rank had a quarter of every matrix and all that is not split
    assert lacking((1, 4, 1), (4, 1, 1)) == [3 / 4 * (4 * SPLIT + TABLE)] * 4


def test_tensor_slices_and_stages_swapped() -> None:
    # before: rank = slice + 2*stage; after: a quarter of everything each
    halves = 2 * SPLIT / 4, 2 * (SPLIT / 4 + WHOLE)  # layers of the own stage, of the other one
    quarter = TABLE / 4
    assert lacking((1, 2, 2), (1, 4, 1)) == [
        halves[1] + NORM,  # [0, 1/4) lies in [0, 1/2)
        halves[0] + halves[1] + quarter + NORM,  # [1/4, 1/2) lies outside [1/2, 1)
        halves[0] + halves[1] + quarter + POSITIONS,  # [1/2, 3/4) lies outside [0, 1/2)
        halves[1] + POSITIONS,
    ]


def test_pipeline_to_tensor_slices_and_back() -> None:
    other = SPLIT / 4 + WHOLE
    there = lacking((1, 1, 4), (1, 4, 1))
    assert there[1] == there[2] == 3 * other + TABLE / 4 + POSITIONS + NORM
    assert there[0] == 3 * other + NORM
    back = lacking((1, 4, 1), (1, 1, 4))
    assert back[1] == back[2] == 3 / 4 * SPLIT
    assert back[0] == back[3] == 3 / 4 * (SPLIT + TABLE)


def test_an_untied_head_stands_on_the_last_stage_alone() -> None:
    untied = SMALL.model_copy(update={"tied_embeddings": False})
    last = lacking((1, 1, 4), (4, 1, 1), untied)[3]
    assert last == 3 * (SPLIT + WHOLE) + POSITIONS + TABLE  # the embedding table is missing


@pytest.mark.parametrize("model", [*MODELS, SMALL], ids=lambda m: f"{m.name}-{m.hidden_size}")
@pytest.mark.parametrize("tied", [True, False])
def test_the_blocks_are_the_whole_model(model, tied: bool) -> None:
    model = model.model_copy(update={"tied_embeddings": tied})
    every = blocks(model)
    assert sum(b.sharded + b.replicated for b in every.values()) == model.num_params
    held = [names_on(stage, layout(1, 1, 4), model) for stage in range(4)]
    assert set().union(*held) == every.keys()


LAYOUTS = [
    found
    for num_gpus in (4, 8, 9)
    for found in StrategySpace(
        model=model_spec(
            num_layers=72, hidden_size=72, num_heads=72, ffn_size=72, vocab_size=9216, tp_max=72
        ),
        num_gpus=num_gpus,
        ladder=LadderSpec(),
    ).layouts
]
WIDE = model_spec(num_layers=72, hidden_size=72, num_heads=72, ffn_size=72, vocab_size=9216)


def atoms(rank: int, one: Layout, unit: int) -> dict[tuple[str, int], Fraction]:
    """Everything that a rank holds, cut into pieces so small that no layout splits them."""
    stage, part = rank // one.tp % one.pp, rank % one.tp
    every, share = blocks(WIDE), unit // one.tp
    held: dict[tuple[str, int], Fraction] = {}
    for name in names_on(stage, one, WIDE):
        held[name, -1] = Fraction(every[name].replicated)
        for piece in range(part * share, (part + 1) * share):
            held[name, piece] = Fraction(every[name].sharded, unit)
    return held


@given(st.data())
def test_lacking_equals_a_count_piece_by_piece(data) -> None:
    old = data.draw(st.sampled_from(LAYOUTS))
    new = data.draw(st.sampled_from([s for s in LAYOUTS if s.num_gpus == old.num_gpus]))
    rank = data.draw(st.integers(0, old.num_gpus - 1))
    unit = lcm(old.tp, new.tp)
    had, needs = atoms(rank, old, unit), atoms(rank, new, unit)
    expected = sum(params for piece, params in needs.items() if piece not in had)
    assert lacking_params(rank, old, new, WIDE) == pytest.approx(float(expected), rel=1e-12)
    assert lacking_params(rank, old, old, WIDE) == 0


# --- presets --------------------------------------------------------------------------------------


def test_live_is_fixed_seconds_plus_bytes_over_the_slowest_link() -> None:
    cost = SwitchCost(SMALL, PAPER)
    num_bytes = 14 * (3 * (SPLIT + WHOLE) + TABLE + POSITIONS + NORM)
    old, new = strategy(1, 1, 4, 2, 8), strategy(4, 1, 1, 1, 64)
    assert cost.lacking_bytes(old.layout, new.layout) == num_bytes
    assert cost.seconds(old, new, "live") == pytest.approx(0.5 + num_bytes / 22.5e9, rel=1e-12)
    assert cost.seconds(new, old, "live") == 0.5  # replicas lack nothing


def test_inside_one_node_the_state_moves_faster() -> None:
    old, new = strategy(1, 1, 4, 2, 8), strategy(4, 1, 1, 1, 8)
    inside = SwitchCost(GPT, ONE_NODE).seconds(old, new, "live") - 0.5
    across = SwitchCost(GPT, PAPER).seconds(old, new, "live") - 0.5
    assert across / inside == pytest.approx(195 / 22.5, rel=1e-9)
    one_gpu_nodes = PAPER.model_copy(
        update={
            "gpus_per_node": 1,
            "num_nodes": 4,
            "intra_node": INTRA.model_copy(update={"bandwidth_gb_s": 1e-3}),
        }
    )  # a link that connects nothing does not count
    assert SwitchCost(GPT, one_gpu_nodes).seconds(old, new, "live") - 0.5 == across


def test_only_a_new_layout_costs() -> None:
    cost = SwitchCost(GPT, PAPER)
    bigger = cost.all_presets(strategy(2, 2, 1, 1, 8), strategy(2, 2, 1, 4, 256))
    assert bigger == {"live": 0, "restart": 0, "zero": 0}
    other = cost.all_presets(strategy(2, 2, 1, 1, 8), strategy(2, 1, 2, 1, 8))
    assert other["restart"] == 38
    assert other["zero"] == 0
    assert 0.5 < other["live"] < 5


@given(st.sampled_from([s for s in LAYOUTS if s.num_gpus == 8 and s.tp < 8]), st.data())
def test_presets_agree_with_single_questions(old: Layout, data) -> None:
    new = data.draw(st.sampled_from([s for s in LAYOUTS if s.num_gpus == 8]))
    one, two = (strategy(x.dp, x.tp, x.pp, 1, 8) for x in (old, new))
    cost = SwitchCost(WIDE, PAPER)
    every = cost.all_presets(one, two)
    assert every == {p: cost.seconds(one, two, p) for p in ("live", "restart", "zero")}
    assert (every["live"] == 0) == (old == new)
    assert every["live"] <= 0.5 + 14 * WIDE.num_params / 22.5e9


def test_bad_questions_are_refused() -> None:
    cost = SwitchCost(GPT, PAPER)
    one = strategy(4, 1, 1, 1, 8)
    with pytest.raises(
        ConfigError, match="unknown switch-cost preset 'lives': did you mean 'live'"
    ):
        cost.seconds(one, one, "lives")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="changes the number of GPUs from 4 to 2"):
        cost.seconds(one, strategy(2, 1, 1, 1, 8), "live")
