"""A Hugging Face config.json becomes a model, or is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cona import hf
from cona.errors import ConfigError

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "head_dim": 64,
    "hidden_act": "silu",
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "some-model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (GPT2, {"family": "gpt", "num_layers": 12, "ffn_size": 3072, "seq_length": 1024}),
        (GPT2 | {"n_inner": 1000}, {"ffn_size": 1000}),
        (GPT2, {"tied_embeddings": True, "num_kv_heads": 12, "vocab_size": 50257}),
        (BERT, {"family": "bert", "num_heads": 16, "ffn_size": 4096, "seq_length": 512}),
        (LLAMA, {"family": "llama", "num_heads": 32, "num_kv_heads": 8, "rope_theta": 500000.0}),
        (LLAMA, {"tied_embeddings": True, "norm_eps": 1e-5, "seq_length": 131072}),
    ],
)
def test_the_three_families(tmp_path: Path, content: dict[str, Any], facts: dict) -> None:
    model = hf.load(write(tmp_path, content))
    assert model.name == "some-model"
    assert {name: getattr(model, name) for name in facts} == facts


@pytest.mark.parametrize(("content", "billions"), [(GPT2, 0.124), (BERT, 0.335), (LLAMA, 1.236)])
def test_a_model_has_the_published_number_of_parameters(
    tmp_path: Path, content: dict[str, Any], billions: float
) -> None:
    model = hf.load(write(tmp_path, content))
    assert model.num_params / 1e9 == pytest.approx(billions, rel=0.01)


def test_defaults_of_llama(tmp_path: Path) -> None:
    """Without the keys: as many key/value heads as heads, untied, base 10000."""
    optional = {"num_key_value_heads", "tie_word_embeddings", "rope_theta", "head_dim"}
    content = {key: value for key, value in LLAMA.items() if key not in optional}
    model = hf.load(write(tmp_path, content))
    assert (model.num_kv_heads, model.tied_embeddings, model.rope_theta) == (32, False, 10000.0)
    nested = content | {"rope_parameters": {"rope_theta": 7.0}}
    assert hf.load(write(tmp_path, nested)).rope_theta == 7.0


def test_one_expert_and_no_biases_are_a_plain_model(tmp_path: Path) -> None:
    plain = {"num_local_experts": 1, "num_experts": 0, "attention_bias": False, "mlp_bias": None}
    assert hf.load(write(tmp_path, LLAMA | plain)) == hf.load(write(tmp_path, LLAMA))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my model (v2)", "my-model-v2"),
        (".hidden", "hidden"),
        ("Größe 1", "Gr-e-1"),
        ("Ö", "llama"),
    ],
)
def test_a_folder_of_any_name_gives_a_valid_one(tmp_path: Path, folder: str, name: str) -> None:
    path = tmp_path / folder / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    assert hf.load(path).name == name


def test_the_user_chooses_the_sequence_length(tmp_path: Path) -> None:
    assert hf.load(write(tmp_path, LLAMA), seq_length=4096).seq_length == 4096


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (LLAMA | {"model_type": "mixtral"}, "'mixtral' is not supported; .* gpt2, bert, llama"),
        ({"n_layer": 12}, "model_type None is not supported"),
        (LLAMA | {"head_dim": 128}, "head_dim = 128: only 64 is supported"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act = 'gelu': only 'silu' is supported"),
        (BERT | {"is_decoder": True}, "is_decoder = True"),
        (LLAMA | {"hidden_size": None}, "key 'hidden_size' is missing"),
        (LLAMA | {"hidden_size": 2000, "head_dim": None}, "2000 is not divisible by num_heads 32"),
        (LLAMA | {"num_key_value_heads": 5}, "num_heads 32 is not divisible by num_kv_heads 5"),
        (LLAMA | {"num_hidden_layers": -1}, "num_layers = -1"),
        (LLAMA | {"vocab_size": "many"}, "vocab_size = 'many': must be a whole"),
        (GPT2 | {"n_embd": "wide"}, "n_embd = 'wide': must be a whole number"),
        (GPT2 | {"n_embd": {}}, "n_embd = {}: must be a whole number"),
        (GPT2 | {"n_layer": True}, "n_layer = True: must be a whole number"),
        (GPT2 | {"n_inner": True}, "n_inner = True: must be a whole number"),
        (GPT2 | {"n_positions": None}, "key 'n_positions' is missing"),
        (LLAMA | {"num_key_value_heads": True}, "num_key_value_heads = True: must be a whole"),
        (LLAMA | {"rms_norm_eps": True}, "rms_norm_eps = True: must be a number"),
        (LLAMA | {"model_type": ["x"]}, r"model_type \['x'\] is not supported"),
        (LLAMA | {"rope_parameters": "x"}, "rope_parameters = 'x': must be an object of keys"),
        (LLAMA | {"num_local_experts": 8}, "num_local_experts = 8: a mixture of experts is not"),
        (LLAMA | {"num_experts": 2}, "num_experts = 2: a mixture of experts is not supported"),
        (LLAMA | {"attention_bias": True}, "attention_bias = True: only False is supported"),
        (LLAMA | {"mlp_bias": True}, "mlp_bias = True: only False is supported"),
        ("[" * 100_000, "not JSON"),
        (LLAMA | {"num_attention_heads": 0}, "num_heads = 0"),
        ("{", "not JSON"),
        ([1], "expected a JSON object"),
    ],
)
def test_what_cannot_be_priced_is_refused(tmp_path: Path, content: Any, sentence: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError, match=sentence) as error:
        hf.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: No such file"):
        hf.load(tmp_path / "config.json")
