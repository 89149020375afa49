"""What planners ask for, by hand for GPT-3 1.3B on the paper's cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cost_cases import (
    BERT,
    GPT,
    INTER,
    INTRA,
    LLAMA,
    MODELS,
    ONE_NODE,
    PAPER,
    cluster_spec,
    ladder_strategies,
    strategy,
)
from hypothesis import given
from hypothesis import strategies as st

from cona.cost import planner_costs, time_model
from cona.cost.improved import Improved
from cona.cost.inputs import inputs
from cona.cost.iteration_time import parts_s
from cona.cost.parts_costs import PartsCosts
from cona.cost.stages import Stages
from cona.errors import ConfigError
from cona.strategy import Strategy

COSTS = planner_costs("calculon", GPT, PAPER)
MODEL = st.sampled_from(MODELS)
TP, MBS = st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])


def parts_costs(model=GPT, cluster=ONE_NODE) -> PartsCosts:
    return PartsCosts(model, cluster, partial(time_model, "calculon+head", cluster=cluster))


# --- Calculon's layers ----------------------------------------------------------------------------


def test_head_by_hand() -> None:
    # 1 x 1024 tokens, padded vocabulary 51200: see test_head_and_memory for the figures
    gemm_s = 214748364800 / 296.4e12 + 318767104 / 1843.2e9
    logits = 52428800
    forward_s = gemm_s + 5 * logits / 7.8e12 + 6 * logits / 1843.2e9
    backward_s = 2 * gemm_s + 8 * logits / 7.8e12 + 6 * logits / 1843.2e9
    assert COSTS.head_time(1, 1, "forward") == pytest.approx(forward_s, rel=1e-12)
    assert COSTS.head_time(1, 1, "backward") == pytest.approx(backward_s, rel=1e-12)


def test_tensor_parallel_exchange_is_part_of_a_layer() -> None:
    # with tp = 2 each pass all-reduces 1024 x 2048 fp16 = 4 MiB twice over NVLink, and adds them
    one = strategy(1, 2, 1, 1, 1)
    parts = time_model("calculon", GPT, PAPER).breakdown(one)
    all_reduce_s = 10e-6 + 4194304 / (300e9 * 0.65)
    reduce_s = 1024 * 2048 / 2 / 7.8e12 + 2 * 4194304 / (2048e9 * 0.6)
    both_s = parts["compute"] / 24 + 4 * (all_reduce_s + reduce_s)
    assert COSTS.layer_time(0, 2, 1, "both") == pytest.approx(both_s, rel=1e-12)


@given(MODEL, TP, MBS)
def test_layers_and_head_add_up_to_the_time_models_compute(model, tp: int, mbs: int) -> None:
    costs = planner_costs("calculon", model, ONE_NODE)
    alone = Strategy(dp=1, tp=tp, pp=1, mbs=mbs, gbs=mbs)
    parts = time_model("calculon+head", model, ONE_NODE).breakdown(alone)
    # a recomputed pass is a forward pass without exchange; each of two passes has one exchange
    exchange_s = model.num_layers * costs.layer_time(0, tp, mbs, "forward") - parts["recompute"]
    whole_s = parts["compute"] + 2 * exchange_s + parts["head"]
    assert (exchange_s > 1e-6) == (tp > 1)
    assert costs.forward_backward_time(tp, mbs) == pytest.approx(whole_s, rel=1e-9)


@given(MODEL, TP, MBS)
def test_both_is_forward_and_backward(model, tp: int, mbs: int) -> None:
    costs = planner_costs("calculon", model, ONE_NODE)
    for ask in (
        lambda part: costs.layer_time(3, tp, mbs, part),
        lambda part: costs.head_time(tp, mbs, part),
    ):
        assert ask("both") == ask("forward") + ask("backward")
        assert ask("backward") > ask("forward") > 0


def test_optimizer_by_hand() -> None:
    # 12 tensors' worth of a layer's matrices in 6 pieces, two norms; the table of 51200 x 2048
    def adam_s(params: float) -> float:
        flops, num_bytes = 11 * params, 12 * params
        vector = 7.8e12 if flops < 1e9 else 39e12
        rate = next(
            r for least, r in ((1e8, 0.9), (1e7, 0.75), (1e6, 0.6), (0, 0.3)) if num_bytes >= least
        )
        return flops / vector + num_bytes / (2048e9 * rate)

    layer_s = 4 * adam_s(2048 * 2048) + 2 * adam_s(2048 * 8192) + 2 * adam_s(2 * 2048)
    expected_s = 24 * layer_s + adam_s(51200 * 2048)
    assert COSTS.optimizer(1, 1) == pytest.approx(expected_s, rel=1e-12)
    assert COSTS.optimizer(1, 2) == pytest.approx(12 * layer_s + adam_s(51200 * 2048), rel=1e-12)


def test_two_tables_where_they_are_not_tied() -> None:
    untied = GPT.model_copy(update={"tied_embeddings": False})
    costs = planner_costs("calculon", untied, PAPER)
    table_s = COSTS.optimizer(1, 1) - 2 * (COSTS.optimizer(1, 1) - COSTS.optimizer(1, 2))
    assert costs.optimizer(1, 1) - COSTS.optimizer(1, 1) == pytest.approx(table_s)
    assert costs.optimizer(1, 2) == COSTS.optimizer(1, 2)


def test_batches_come_for_free() -> None:
    assert COSTS.batch_generator_time() == 0.0


# --- links and sizes ------------------------------------------------------------------------------


def test_messages_by_hand() -> None:
    assert COSTS.p2p(4194304) == pytest.approx(20e-6 + 4194304 / 22.5e9, rel=1e-12)
    assert COSTS.allreduce(1e9, 4) == pytest.approx(20e-6 + 1e9 / 22.5e9, rel=1e-12)
    one_node = planner_costs("calculon", GPT, ONE_NODE)
    ring_s = 10e-6 + 1e9 * 2 * 3 / 4 / 195e9
    assert one_node.allreduce(1e9, 4) == pytest.approx(ring_s, rel=1e-12)
    assert COSTS.allreduce(1e9, 1) == 0.0


def test_links() -> None:
    assert COSTS.link("intra_node") == INTRA
    assert COSTS.link("inter_node") == INTER


def test_weights_by_hand() -> None:
    h, f = 2048, 8192
    assert COSTS.params_bytes(7) == 2 * (4 * h * h + 2 * h * f + 9 * h + f)
    assert COSTS.params_bytes("embedding") == 2 * (51200 * h + 1024 * h)
    assert COSTS.params_bytes("head") == 2 * (51200 * h + 2 * h)
    llama = planner_costs("calculon", LLAMA, PAPER)
    assert llama.params_bytes(0) == 2 * (2 * h * h + 2 * h * 512 + 3 * h * f + 2 * h)


@given(MODEL, st.booleans())
def test_weights_add_up_to_the_model(model, is_tied: bool) -> None:
    model = model.model_copy(update={"tied_embeddings": is_tied})
    costs = planner_costs("calculon", model, PAPER)
    pieces = [*range(model.num_layers), "embedding", "head"]
    shared = 2 * model.padded_vocab_size * model.hidden_size if is_tied else 0
    assert sum(map(costs.params_bytes, pieces)) - shared == 2 * model.num_params


def test_memory_of_three_stages_by_hand() -> None:
    # State is 18 B per parameter; a GPT layer keeps 32 B per element (fused, no dropout);
    # a stage k of 3 keeps 3 - k micro-batches; 10 B per logit; 3 % and 2 GB of reserve.
    thirds, h, f = strategy(1, 1, 3, 1, 8), 2048, 8192
    layers = 8 * 18 * (4 * h * h + 2 * h * f + 6 * h)
    kept, table, positions = 8 * 32 * 1024 * h, 18 * 51200 * h, 18 * 1024 * h
    used = [
        layers + table + positions + 3 * kept,
        layers + 2 * kept,
        layers + table + kept + 10 * 1024 * 51200,
    ]
    for stage, expected in enumerate(used):
        assert COSTS.memory(stage, thirds) == pytest.approx(2e9 + 1.03 * expected, rel=1e-12)


@given(MODEL, st.data())
def test_the_fullest_stage_is_what_the_improved_model_needs(model, data) -> None:
    one = data.draw(st.sampled_from(ladder_strategies(model)))
    costs, needs = planner_costs("calculon", model, PAPER), Improved(model, PAPER)
    stages = [costs.memory(stage, one) for stage in range(one.pp)]
    assert max(stages) == pytest.approx(needs.memory_bytes(one), rel=1e-12)


@pytest.mark.parametrize("stage", [-1, 2])
def test_a_stage_that_is_none_is_refused(stage: int) -> None:
    with pytest.raises(ConfigError, match=rf"stage {stage}: .* has stages 0 to 1"):
        COSTS.memory(stage, strategy(1, 2, 2, 1, 8))


# --- any time model -------------------------------------------------------------------------------


@given(MODEL, TP, MBS)
def test_parts_of_one_layer_agree_with_the_equations(model, tp: int, mbs: int) -> None:
    parts, exact = parts_costs(model), planner_costs("calculon", model, ONE_NODE)
    assert parts.head_time(tp, mbs, "both") == pytest.approx(exact.head_time(tp, mbs, "both"))
    layer_s = exact.layer_time(0, tp, mbs, "both")
    if tp == 1:
        assert parts.layer_time(0, tp, mbs, "both") == pytest.approx(layer_s)
    else:  # Calculon's tp_comm holds the exchange of the recomputed pass too
        assert layer_s < parts.layer_time(0, tp, mbs, "both") < 1.5 * layer_s
    assert parts.layer_time(0, tp, mbs, "backward") == pytest.approx(
        2 * parts.layer_time(0, tp, mbs, "forward")
    )


def test_parts_of_the_optimizer_by_hand() -> None:
    costs = parts_costs()
    # Calculon's optimizer is that of the layers alone: the ends cost nothing there
    whole_s = time_model("calculon", GPT, ONE_NODE).breakdown(strategy(1, 1, 1, 1, 1))["optimizer"]
    assert costs.optimizer(1, 1) == pytest.approx(whole_s)
    assert costs.optimizer(1, 4) == pytest.approx(whole_s / 4)


def test_two_tables_on_two_stages_are_one_on_each() -> None:
    untied = GPT.model_copy(update={"tied_embeddings": False})
    tied, apart = (planner_costs("improved", m, ONE_NODE) for m in (GPT, untied))
    assert apart.optimizer(1, 1) > 1.05 * tied.optimizer(1, 1)
    assert apart.optimizer(1, 2) == pytest.approx(tied.optimizer(1, 2), rel=0.01)


def test_parts_reduce_inside_nodes_then_between_them() -> None:
    costs = parts_costs(cluster=PAPER)
    # two passes; in each, half of the buffer over NVLink, and a quarter over each of two NICs
    pass_s = 10e-6 + 0.5e9 / 195e9 + 20e-6 + 0.25e9 / 22.5e9
    assert costs.allreduce(1e9, 4) == pytest.approx(2 * pass_s, rel=1e-12)
    assert costs.allreduce(1e9, 2) == pytest.approx(2 * (10e-6 + 0.5e9 / 195e9), rel=1e-12)
    assert costs.p2p(4194304) == pytest.approx(20e-6 + 4194304 / 22.5e9, rel=1e-12)
    assert parts_costs().p2p(4194304) == pytest.approx(10e-6 + 4194304 / 195e9, rel=1e-12)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda c: c.layer_time(24, 1, 1, "both"), "layer 24: gpt3-1.3b has layers 0 to 23"),
        (lambda c: c.layer_time(-1, 1, 1, "both"), "layer -1"),
        (lambda c: c.layer_time(0, 0, 1, "both"), "tp = 0: must be at least 1"),
        (lambda c: c.head_time(1, 0, "both"), "mbs = 0: must be at least 1"),
        (lambda c: c.head_time(1, 1, "foward"), "'foward': did you mean 'forward'"),
        (lambda c: c.params_bytes("embeding"), "'embeding': did you mean 'embedding'"),
        (lambda c: c.link("inter"), "'inter': did you mean 'inter_node'"),
        (lambda c: c.allreduce(1.0, 0), "n = 0: must be at least 1"),
        (lambda c: c.allreduce(-1.0, 2), "num_bytes = -1.0: must be a number of at least 0"),
        (lambda c: c.p2p(-1.0), "num_bytes = -1.0: must be a number of at least 0"),
        (lambda c: c.p2p(float("nan")), "num_bytes = nan"),
        (lambda c: c.optimizer(1, 0), "pp = 0: must be at least 1"),
        (lambda c: c.optimizer(1, 5), "num_layers 24 is not divisible by pp 5"),
        (lambda c: c.layer_time(0, 3, 1, "both"), "hidden_size 2048 is not divisible by tp 3"),
        (lambda c: c.head_time(3, 1, "both"), "hidden_size 2048 is not divisible by tp 3"),
        (lambda c: c.head_time(8, 1, "both"), "tp 8 exceeds the 4 GPUs of a100x4-2node"),
        (lambda c: c.memory(0, strategy(1, 1, 5, 1, 8)), "not divisible by pp 5"),
        (lambda c: c.memory(0, strategy(1, 3, 1, 1, 8)), "not divisible by tp 3"),
    ],
)
@pytest.mark.parametrize("name", ["calculon", "improved"])
def test_a_wrong_question_is_explained(ask, sentence: str, name: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ask(planner_costs(name, GPT, PAPER))


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'calculon'"):
        planner_costs("calculom", BERT, PAPER)


# --- the improved model ---------------------------------------------------------------------------


@given(MODEL, TP, MBS)
def test_the_improved_models_costs_add_up_to_its_own_time(model, tp: int, mbs: int) -> None:
    costs = planner_costs("improved", model, ONE_NODE)
    parts = time_model("improved", model, ONE_NODE).breakdown(
        Strategy(dp=1, tp=tp, pp=1, mbs=mbs, gbs=mbs)
    )
    whole_s = sum(parts.values()) - parts["optimizer"]
    assert costs.forward_backward_time(tp, mbs) == pytest.approx(whole_s, rel=1e-3)
    assert costs.head_time(tp, mbs, "both") >= 0.999 * parts["head"]
    assert costs.optimizer(tp, 1) == pytest.approx(parts["optimizer"], rel=1e-9)


@given(st.sampled_from([2, 4, 8]), MBS)
def test_the_improved_models_all_reduce_is_that_of_its_time(dp: int, mbs: int) -> None:
    """What the clock pays for gradients that no backward pass hides: those of a whole replica."""
    for cluster in (ONE_NODE, cluster_spec(name="wide", gpus_per_node=4)):
        times, alone = Improved(GPT, cluster), strategy(1, 1, 1, mbs, mbs)
        x = inputs(GPT, cluster, [strategy(dp, 1, 1, mbs, dp * mbs), alone])
        shown, constants = replace(x, overlap=np.zeros(1)), times.calibration.constants
        parts, stages = parts_s(shown, constants, Stages.of(shown)), Stages.of(shown)
        gradient_bytes = 2 * float(stages.largest[0])
        found = planner_costs("improved", GPT, cluster).allreduce(gradient_bytes, dp)
        assert found == pytest.approx(float(parts["dp_comm"][0]), rel=1e-9)


def test_times_of_pieces_do_not_depend_on_memory() -> None:
    small = ONE_NODE.model_copy(update={"gpu_memory_gb": 0.1})
    roomy, tight = (planner_costs("improved", GPT, c) for c in (ONE_NODE, small))
    assert tight.layer_time(0, 1, 8, "both") == roomy.layer_time(0, 1, 8, "both")
    assert tight.head_time(1, 8, "both") == roomy.head_time(1, 8, "both")
    assert tight.optimizer(1, 1) == roomy.optimizer(1, 1)
