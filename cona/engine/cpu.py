"""Run megatron-core without a GPU, and run torch the same way every time.

Megatron-core asks CUDA which device it is on even when every tensor lives on the CPU, and for the
state of its random generator when it recomputes activations. The answers are process-wide, so they
are given only where no CUDA device exists.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cona.errors import ConfigError

TESTED_MEGATRON = "0.16.1"


def device() -> torch.device:
    """Return the device that engines of this process use: the current CUDA device, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def install() -> None:
    """Make megatron-core usable where no CUDA device exists; elsewhere do nothing.

    Raises:
        ConfigError: the installed megatron-core is not the version that this was tested with.
    """
    if torch.cuda.is_available():
        return
    import megatron.core

    found = megatron.core.__version__
    if found != TESTED_MEGATRON:
        raise ConfigError(
            f"megatron-core {found} is installed, but running it without a GPU is tested with "
            f"{TESTED_MEGATRON} only; install megatron-core=={TESTED_MEGATRON}"
        )
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = _current_device  # type: ignore[assignment]
    # The CPU's generator is saved and set next to it anyway.
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _current_device() -> torch.device:
    # Megatron passes the answer on as `device=...`, which takes a torch.device as well as an index.
    return torch.device("cpu")


def make_deterministic() -> None:
    """Make equal calls give equal bits, in this process and in the next on the same machine.

    One thread, because sums over threads depend on the split. MKL reads its mode at its first
    call, so this must run before any matrix product.

    Source: Intel's oneMKL developer guide, Conditional Numerical Reproducibility.
    """
    os.environ.setdefault("MKL_CBWR", _mkl_mode())
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # The default also fills every new tensor with NaN, to catch reads of uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _mkl_mode() -> str:
    """Return MKL's fastest reproducible mode: COMPATIBLE is 3-5 times slower (SSE2 only)."""
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return "AVX2,STRICT" if has_avx2 else "COMPATIBLE"


class CudaMeansCpu(TorchFunctionMode):
    """While active, tensors that are asked for on "cuda" are made on the CPU.

    Megatron's schedules and its reduction of gradients name the device in plain text.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function, with another device if it names CUDA."""
        options = kwargs or {}
        if str(options.get("device")).startswith("cuda"):
            options = {**options, "device": "cpu"}
        return function(*args, **options)


def megatron_on_this_device() -> contextlib.AbstractContextManager[Any]:
    """Return the context in which megatron's schedules run, with or without a CUDA device."""
    return contextlib.nullcontext() if torch.cuda.is_available() else CudaMeansCpu()
