"""A strategy in the words of Megatron-LM, DeepSpeed and torchtitan."""

from __future__ import annotations

import json
import shlex
import tomllib
from typing import Any

import pytest
from cost.cost_cases import BERT, GPT, LLAMA
from hypothesis import given
from hypothesis import strategies as st

from cona.emit import TRAINERS, emit
from cona.errors import ConfigError
from cona.strategy import Strategy, Techniques


def strategy(**techniques: Any) -> Strategy:
    """dp 2, tp 2, pp 2, eight micro-batches of 4 samples."""
    return Strategy(dp=2, tp=2, pp=2, mbs=4, gbs=64, techniques=Techniques(**techniques))


def flat(**techniques: Any) -> Strategy:
    """dp 4, no pipeline, four micro-batches of 4 samples."""
    return Strategy(dp=4, tp=2, pp=1, mbs=4, gbs=64, techniques=Techniques(**techniques))


def flags(text: str) -> dict[str, str]:
    """Megatron flags as a shell would split them; flags without a value are ''."""
    words = shlex.split(text.replace("\\\n", " "))
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {w[2:]: "" if after.startswith("--") else after for w, after in pairs if w[:2] == "--"}


def test_megatron_shape_and_degrees() -> None:
    found = flags(emit("megatron", strategy(), GPT).text)
    expected = {
        "num-layers": "24",
        "hidden-size": "2048",
        "ffn-hidden-size": "8192",
        "num-attention-heads": "16",
        "seq-length": "1024",
        "max-position-embeddings": "1024",
        "tensor-model-parallel-size": "2",
        "pipeline-model-parallel-size": "2",
        "context-parallel-size": "1",
        "micro-batch-size": "4",
        "global-batch-size": "64",
        "bf16": "",
        "overlap-grad-reduce": "",
        "norm-epsilon": "1e-05",
        "hidden-dropout": "0",
        "attention-dropout": "0",
    }
    assert found == expected


def test_megatron_gets_the_models_dropout_and_epsilon() -> None:
    model = BERT.model_copy(update={"dropout": 0.1, "norm_eps": 1e-12})
    found = flags(emit("megatron", strategy(), model).text)
    assert (found["hidden-dropout"], found["attention-dropout"]) == ("0.1", "0.1")
    assert found["norm-epsilon"] == "1e-12"
    assert "disable-bias-linear" not in found  # BERT and GPT have biases


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_megatron_overlaps_what_the_price_overlaps(stage: int) -> None:
    found = flags(emit("megatron", strategy(zero_stage=stage), GPT).text)
    assert "overlap-grad-reduce" in found
    assert ("overlap-param-gather" in found) == ("use-distributed-optimizer" in found)
    assert ("overlap-param-gather" in found) == (stage > 0)


def test_megatron_llama_is_grouped_gated_and_rotary() -> None:
    found = flags(emit("megatron", strategy(), LLAMA).text)
    assert found["num-query-groups"] == "8"
    assert found["rotary-base"] == "10000"
    assert {"group-query-attention", "swiglu", "disable-bias-linear"} <= found.keys()
    assert "untie-embeddings-and-output-weights" not in found
    untied = LLAMA.model_copy(update={"tied_embeddings": False})
    assert "untie-embeddings-and-output-weights" in flags(emit("megatron", strategy(), untied).text)


@pytest.mark.parametrize(
    ("techniques", "expected"),
    [
        ({"zero_stage": 1}, {"use-distributed-optimizer": ""}),
        ({"zero_stage": 2}, {"data-parallel-sharding-strategy": "optim_grads"}),
        ({"zero_stage": 3}, {"data-parallel-sharding-strategy": "optim_grads_params"}),
        ({"sequence_parallel": True}, {"sequence-parallel": ""}),
        ({"recompute": "selective"}, {"recompute-granularity": "selective"}),
        ({"recompute": "full"}, {"recompute-method": "uniform", "recompute-num-layers": "1"}),
        ({"virtual_stages": 3}, {"num-layers-per-virtual-pipeline-stage": "4"}),  # 24 / (2*3)
        ({"context_parallel": 2}, {"context-parallel-size": "2"}),
    ],
)
def test_megatron_says_every_technique(techniques: dict, expected: dict) -> None:
    found = flags(emit("megatron", strategy(**techniques), GPT).text)
    assert found.items() >= expected.items()
    assert found != flags(emit("megatron", strategy(), GPT).text)


def test_deepspeed_json() -> None:
    emitted = emit("deepspeed", strategy(zero_stage=1), GPT)
    assert json.loads(emitted.text) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "tensor_parallel": {"autotp_size": 2},
    }
    assert any("num_stages=2" in note for note in emitted.notes)


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_has_no_pipeline_with_zero_2(stage: int) -> None:
    with pytest.raises(ConfigError, match=f"zero_stage {stage}: .* at most stage 1"):
        emit("deepspeed", strategy(zero_stage=stage), GPT)
    assert json.loads(emit("deepspeed", flat(zero_stage=stage), GPT).text)["zero_optimization"] == {
        "stage": stage
    }


@pytest.mark.parametrize(
    ("techniques", "words"),
    [
        ({"recompute": "full"}, "full recomputation"),
        ({"virtual_stages": 2}, "no interleaving"),
        ({"context_parallel": 2}, "context_parallel 2"),
    ],
)
def test_deepspeed_notes_what_the_file_cannot_say(techniques: dict, words: str) -> None:
    assert any(words in note for note in emit("deepspeed", strategy(**techniques), GPT).notes)
    assert not any(words in note for note in emit("deepspeed", strategy(), GPT).notes)


def test_torchtitan_without_a_pipeline_accumulates() -> None:
    found = tomllib.loads(emit("torchtitan", flat(zero_stage=3, recompute="full"), GPT).text)
    assert found["training"] == {"seq_len": 1024, "local_batch_size": 4, "global_batch_size": 64}
    assert found["activation_checkpoint"] == {"mode": "full"}
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": 1,
        "context_parallel_degree": 1,
    }


def test_torchtitan_with_a_pipeline_cuts_the_local_batch() -> None:
    found = tomllib.loads(emit("torchtitan", strategy(virtual_stages=2), GPT).text)
    assert found["training"]["local_batch_size"] == 32  # 8 micro-batches of 4
    assert found["parallelism"]["pipeline_parallel_microbatch_size"] == 4
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["parallelism"]["pipeline_parallel_layers_per_stage"] == 6
    assert found["parallelism"]["data_parallel_replicate_degree"] == 2


def test_torchtitan_says_where_it_differs() -> None:
    assert any("ZeRO-2" in note for note in emit("torchtitan", flat(zero_stage=1), GPT).notes)
    assert any("sequence parallel" in note for note in emit("torchtitan", flat(), GPT).notes)
    assert len(emit("torchtitan", flat(zero_stage=3, sequence_parallel=True), GPT).notes) == 1


def test_an_unknown_trainer_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown trainer 'megatorn': did you mean 'megatron'"):
        emit("megatorn", strategy(), GPT)


@given(
    dp=st.integers(1, 8),
    mbs=st.integers(1, 8),
    num_microbatches=st.integers(1, 8),
    pp=st.sampled_from((1, 2, 4)),
)
def test_every_trainer_gets_the_same_batches(
    dp: int, mbs: int, num_microbatches: int, pp: int
) -> None:
    gbs = dp * mbs * num_microbatches
    one = Strategy(dp=dp, tp=1, pp=pp, mbs=mbs, gbs=gbs)
    megatron = flags(emit("megatron", one, GPT).text)
    deepspeed = json.loads(emit("deepspeed", one, GPT).text)
    training = tomllib.loads(emit("torchtitan", one, GPT).text)["training"]
    assert int(megatron["global-batch-size"]) == deepspeed["train_batch_size"] == gbs
    assert training["global_batch_size"] == gbs
    accumulated = deepspeed["gradient_accumulation_steps"]
    assert dp * accumulated * deepspeed["train_micro_batch_size_per_gpu"] == gbs
    assert gbs % (dp * training["local_batch_size"]) == 0
    assert set(TRAINERS) == {"megatron", "deepspeed", "torchtitan"}
