"""The shim touches CUDA only where there is none, and only for the megatron-core it knows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from cona.engine import cpu
from cona.errors import ConfigError


def test_an_untested_megatron_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("megatron.core.__version__", "0.99.0")
    with pytest.raises(ConfigError, match=r"megatron-core 0\.99\.0 .*0\.16\.1 only"):
        cpu.install()


def test_nothing_is_touched_where_cuda_exists(monkeypatch):
    original = object()
    monkeypatch.setattr(torch.cuda, "current_device", original)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("megatron.core.__version__", "0.99.0")
    cpu.install()
    assert torch.cuda.current_device is original


def test_current_device_is_the_cpu_where_no_cuda_exists(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cpu.install()
    assert torch.cuda.current_device() == torch.device("cpu") == cpu.device()


def test_the_device_is_cuda_where_it_exists(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert cpu.device() == torch.device("cuda", 3)


def test_deterministic_settings(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    cpu.make_deterministic()
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["MKL_CBWR"] in ("AVX2,STRICT", "COMPATIBLE")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")  # the user's choice wins
    cpu.make_deterministic()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


def test_the_contract_is_light():
    code = (
        "import sys, cona.engine.base; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'megatron', 'deepspeed')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
