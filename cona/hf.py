"""A Hugging Face ``config.json`` as a model of ours: the GPT-2, BERT and Llama families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cona import config
from cona.errors import ConfigError
from cona.specs import ModelSpec

_TRAINING = {"base_lr": 3e-4, "min_lr": 3e-5, "decay_tokens": 1_000_000_000}
"""ASSUMED: a config.json says nothing about training, and planning does not ask."""


def load(path: Path, seq_length: int | None = None) -> ModelSpec:
    """Read a Hugging Face ``config.json``.

    Args:
        path: the file.
        seq_length: tokens per sample; None: the longest sequence that the model was made for.

    Returns:
        The model, named after the folder of the file (blanks and the like become '-').

    Raises:
        ConfigError: the file cannot be read, is of another family, lacks a key, or describes a
            model that the cost model does not (experts, biases in a Llama, heads wider than
            hidden_size/num_heads).
    """
    content = _read(path)
    model_type = content.get("model_type")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise ConfigError(
            f"{path}: model_type {model_type!r} is not supported; "
            f"the families are {', '.join(_FAMILIES)}"
        )
    keys = _Keys(content, path)
    for name in _EXPERTS:
        keys.must_be_at_most_one(name)
    facts = _FAMILIES[model_type](keys)
    if seq_length is not None:
        facts["seq_length"] = seq_length
    facts |= {
        "name": _name(path.resolve().parent.name) or model_type,
        "description": f"{model_type} model of {path.name}",
        "source": str(path),
        "training": _TRAINING,
    }
    return config.validate(ModelSpec, facts, where=str(path))


def _name(folder: str) -> str:
    """Return a folder's name in the characters that a model's name may have; '' if none is left."""
    return re.sub(r"[^A-Za-z0-9_.@-]+", "-", folder).strip("-_.@")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, the config.json of a model")
    return content


class _Keys:
    """A config.json whose missing keys are errors that name the file."""

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        self._content = content
        self._path = path

    def get(self, key: str, default: Any) -> Any:
        """Return a key's value; the default where it is missing or null."""
        value = self._content.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number; raises ConfigError: none is there, nor a default."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{self._path}: key '{key}' is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self._path}: {key} = {value!r}: must be a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number, or the default; raises ConfigError for anything else."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self._path}: {key} = {value!r}: must be a number")
        return value

    def table(self, key: str) -> _Keys:
        """Return the keys of a nested object, empty where there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path}: {key} = {value!r}: must be an object of keys")
        return _Keys(value, self._path)

    def must_be(self, key: str, wanted: Any) -> None:
        """Refuse a file in which a key says something that the cost model cannot price."""
        value = self.get(key, wanted)
        if value != wanted:
            raise ConfigError(f"{self._path}: {key} = {value!r}: only {wanted!r} is supported")

    def must_be_at_most_one(self, key: str) -> None:
        """Refuse a mixture of experts, whose layers the cost model cannot price."""
        if self.get(key, 1) not in (0, 1):
            value = self.get(key, 1)
            raise ConfigError(
                f"{self._path}: {key} = {value!r}: a mixture of experts is not supported; only 1 is"
            )


def _gpt2(keys: _Keys) -> dict[str, Any]:
    keys.must_be("add_cross_attention", False)
    return {
        "family": "gpt",
        "num_layers": keys.count("n_layer"),
        "hidden_size": keys.count("n_embd"),
        "num_heads": keys.count("n_head"),
        "num_kv_heads": keys.count("n_head"),
        "ffn_size": keys.count("n_inner", 4 * keys.count("n_embd")),
        "vocab_size": keys.count("vocab_size"),
        "seq_length": keys.count("n_positions", keys.get("n_ctx", None)),
        "tied_embeddings": keys.get("tie_word_embeddings", True),
        "norm_eps": keys.number("layer_norm_epsilon", 1e-5),
        "dropout": keys.number("resid_pdrop", 0.1),
    }


def _shape(keys: _Keys) -> dict[str, Any]:
    """Return what BERT and Llama write under the same keys."""
    return {
        "num_layers": keys.count("num_hidden_layers"),
        "hidden_size": keys.count("hidden_size"),
        "num_heads": keys.count("num_attention_heads"),
        "ffn_size": keys.count("intermediate_size"),
        "vocab_size": keys.count("vocab_size"),
        "seq_length": keys.count("max_position_embeddings"),
    }


def _bert(keys: _Keys) -> dict[str, Any]:
    keys.must_be("is_decoder", False)
    return _shape(keys) | {
        "family": "bert",
        "num_kv_heads": keys.count("num_attention_heads"),
        "tied_embeddings": keys.get("tie_word_embeddings", True),
        "norm_eps": keys.number("layer_norm_eps", 1e-12),
        "dropout": keys.number("hidden_dropout_prob", 0.1),
    }


def _llama(keys: _Keys) -> dict[str, Any]:
    heads = keys.count("num_attention_heads")
    if heads > 0:
        keys.must_be("head_dim", keys.count("hidden_size") // heads)
    keys.must_be("hidden_act", "silu")
    keys.must_be("attention_bias", False)
    keys.must_be("mlp_bias", False)
    rope = keys.table("rope_parameters")  # where newer files keep the base
    return _shape(keys) | {
        "family": "llama",
        "num_kv_heads": keys.count("num_key_value_heads", heads),
        "tied_embeddings": keys.get("tie_word_embeddings", False),
        "norm_eps": keys.number("rms_norm_eps", 1e-6),
        "rope_theta": keys.number("rope_theta", rope.number("rope_theta", 10000.0)),
    }


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys under which files state how many experts a layer has."""

_FAMILIES: dict[str, Callable[[_Keys], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "bert": _bert,
    "llama": _llama,
}
