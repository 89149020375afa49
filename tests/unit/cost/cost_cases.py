"""The paper's models and clusters, written out so that no test depends on a YAML file."""

from __future__ import annotations

from typing import Any

from cona.specs import ClusterSpec, LadderSpec, LinkSpec, ModelSpec, TrainingSpec
from cona.strategy import Strategy, StrategySpace

TRAINING = TrainingSpec(base_lr=3e-4, min_lr=2e-4, decay_tokens=1_000_000)
INTRA = LinkSpec(bandwidth_gb_s=300, efficiency=0.65, latency_us=10)
INTER = LinkSpec(bandwidth_gb_s=25, efficiency=0.9, latency_us=20)


def model_spec(**changes: Any) -> ModelSpec:
    """GPT-3 1.3B, or a model that differs from it in the given fields."""
    facts: dict[str, Any] = {
        "name": "gpt3-1.3b",
        "description": "test",
        "family": "gpt",
        "num_layers": 24,
        "hidden_size": 2048,
        "num_heads": 16,
        "ffn_size": 8192,
        "vocab_size": 50257,
        "seq_length": 1024,
        "training": TRAINING,
        "source": "test",
    } | changes
    facts.setdefault("num_kv_heads", facts["num_heads"])
    return ModelSpec(**facts)


def cluster_spec(**changes: Any) -> ClusterSpec:
    """The paper's cluster of 2 x 2 A100, or one that differs in the given fields."""
    facts: dict[str, Any] = {
        "name": "a100x4-2node",
        "description": "test",
        "gpu": "a100-80g",
        "num_nodes": 2,
        "gpus_per_node": 2,
        "gpu_memory_gb": 80,
        "intra_node": INTRA,
        "inter_node": INTER,
        "source": "test",
    } | changes
    return ClusterSpec(**facts)


def strategy(dp: int, tp: int, pp: int, mbs: int, gbs: int) -> Strategy:
    """A strategy from its five numbers, in the order of method.md 1."""
    return Strategy(dp=dp, tp=tp, pp=pp, mbs=mbs, gbs=gbs)


GPT = model_spec()
BERT = model_spec(
    name="bert-large",
    family="bert",
    hidden_size=1024,
    ffn_size=4096,
    vocab_size=30000,
    seq_length=512,
)
LLAMA = model_spec(
    name="llama-3.2-1b",
    family="llama",
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    vocab_size=128256,
)
MODELS = (GPT, BERT, LLAMA)

PAPER = cluster_spec()
ONE_NODE = cluster_spec(name="a100x8", num_nodes=1, gpus_per_node=8)
ONE_GPU = cluster_spec(name="a100x1", num_nodes=1, gpus_per_node=1)


def ladder_strategies(model: ModelSpec, num_gpus: int = 4) -> list[Strategy]:
    """S(gbs) for every gbs of the ladder."""
    space = StrategySpace(model=model, num_gpus=num_gpus, ladder=LadderSpec())
    return [s for gbs in space.ladder.rungs for s in space.at(gbs)]
