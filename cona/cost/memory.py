"""M(s): bytes that a strategy needs on one GPU, and whether they fit.

Source: method.md 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from cona.specs import ModelSpec
from cona.strategy import Strategy


class MemoryModel(ABC):
    """Predicts the memory of a strategy's fullest GPU."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model

    @abstractmethod
    def memory_bytes(self, strategy: Strategy) -> float:
        """Return the bytes that the strategy needs on one GPU."""

    def why_not(self, strategy: Strategy, gpu_memory_gb: float) -> str | None:
        """Return why a strategy does not fit, or None.

        Args:
            strategy: the strategy.
            gpu_memory_gb: memory of one GPU in GB (1e9 bytes).
        """
        needed_gb = self.memory_bytes(strategy) / 1e9
        if needed_gb <= gpu_memory_gb:
            return None
        return (
            f"it needs {needed_gb:.1f} GB of memory and a GPU has {gpu_memory_gb:g} GB; "
            f"a smaller mbs or a larger tp*pp needs less"
        )


class PaperMemory(MemoryModel):
    """The paper's screen: 16 B per parameter and one fp16 tensor of activations per layer.

    It ignores ZeRO, logits and micro-batches in flight, counts every layer as GPT's, and rejects
    nothing at 1B parameters on 80 GB.
    """

    def memory_bytes(self, strategy: Strategy) -> float:
        """Return the bytes that the strategy needs on one GPU.

        Source: method.md 1, `paper` memory screen.
        """
        model, stages = self.model, strategy.pp
        h, f = model.hidden_size, model.ffn_size
        layer = 4 * h * h + 2 * h * f + (9 * h + f)  # matrices; biases and norms
        num_params = h * model.padded_vocab_size + model.num_layers / stages * layer
        activations = strategy.mbs * model.seq_length * h * model.num_layers / stages
        return (16 * num_params + 2 * activations) / strategy.tp
