"""Cores, GPUs, and whether two ranks can work together on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from cona.doctor.ask import Answers
from cona.doctor.finding import Finding, State
from cona.doctor.software import INSTALL
from cona.storage import amount

GPU_FIELDS = "name,memory.total,driver_version"
LEAST_MEMORY_BYTES = 2e9
"""ASSUMED: host memory that a job of the smallest models may need, as in `cona.resources`."""
THREADS = "OMP_NUM_THREADS"
SUM = 3.0
"""What 1 and 2, the values of the two ranks, add up to."""


def cores(results: Path, answers: Answers) -> Iterator[Finding]:
    """How many cores may be used, by how many threads, with how much memory?"""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free, threads = psutil.virtual_memory().available, os.environ.get(THREADS)
    found = f"{num_cores} cores, {THREADS} {threads or 'not set'}, {amount(free)} of memory free"
    details = {"cores": num_cores, THREADS: threads, "memory_bytes": free}
    state, remedy = _judge_cores(num_cores or 1, free, threads)
    yield Finding(name="cores", state=state, found=found, remedy=remedy, details=details)


def _judge_cores(num_cores: int, free: int, threads: str | None) -> tuple[State, str]:
    if free < LEAST_MEMORY_BYTES:
        return "warn", f"free {amount(int(LEAST_MEMORY_BYTES))} before you train"
    if threads is None and num_cores > 1:
        return "warn", f"export {THREADS}=1 where runs share the machine: each takes all cores"
    if threads is not None and not threads.replace(",", "").isdecimal():
        return "warn", f"a whole number is expected: export {THREADS}=1"
    return "ok", ""


def gpu(results: Path, answers: Answers) -> Iterator[Finding]:
    """Which GPUs are there?"""
    answer = answers("gpus")
    if answer is None:
        remedy = "none needed for the modelled clock, nor for ranks on the CPU"
        yield Finding(name="gpu", state="absent", found="no nvidia-smi", remedy=remedy)
    elif answer.code != 0 or not answer.out.strip():
        remedy = "mend the driver, or go on without a GPU"
        yield Finding(name="gpu", state="warn", found=answer.reason, remedy=remedy)
    else:
        gpus = [line.strip() for line in answer.out.splitlines() if line.strip()]
        kinds = {kind: gpus.count(kind) for kind in gpus}
        words = "; ".join(f"{count} x {_gpu(kind)}" for kind, count in kinds.items())
        details = {"gpus": [_gpu_fields(line) for line in gpus]}
        yield Finding(name="gpu", state="ok", found=words, details=details)


def _gpu(line: str) -> str:
    name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
    return f"{name}, {memory}, driver {driver}"


def _gpu_fields(line: str) -> dict[str, str]:
    return dict(zip(GPU_FIELDS.split(","), (p.strip() for p in line.rsplit(",", 2)), strict=True))


def engine(results: Path, answers: Answers) -> Iterator[Finding]:
    """Which torch is there, can two ranks sum a tensor, can megatron-core be imported?"""
    answer = answers("ranks")
    if answer is None or answer.code != 0:
        reason = answer.reason if answer else "no Python"
        yield Finding(name="ranks", state="fail", found=reason, remedy=INSTALL)
        return
    facts = json.loads(answer.out)
    if "torch" in facts:
        yield _torch(facts, has_gpu=bool((smi := answers("gpus")) and smi.code == 0))
    yield _ranks(facts)
    if "megatron" in facts:
        yield _megatron(facts)


def _torch(facts: dict[str, Any], *, has_gpu: bool) -> Finding:
    built_for = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU"
    found = f"{facts['torch']}, built for {built_for}, sees {facts['gpus']} GPUs"
    details = {key: facts[key] for key in ("torch", "cuda", "gpus")}
    if has_gpu and not facts["gpus"]:
        remedy = "install torch from an index of CUDA wheels, for this driver (TORCH_INDEX=)"
        return Finding(name="torch", state="warn", found=found, remedy=remedy, details=details)
    return Finding(name="torch", state="ok", found=found, details=details)


def _ranks(facts: dict[str, Any]) -> Finding:
    details = {key: value for key, value in facts.items() if key in ("backend", "all_reduce_s")}
    if "low" not in facts:
        remedy = "check that this machine's processes may talk to each other, and /dev/shm"
        found = facts.get("error", "the ranks ended without a word")
        return Finding(name="ranks", state="fail", found=found, remedy=remedy)
    name = {"nccl": "NCCL"}.get(facts["backend"], facts["backend"])
    if (facts["low"], facts["high"]) != (SUM, SUM):
        found = f"{name}: 1 + 2 gave {facts['low']:g} to {facts['high']:g}"
        remedy = "do not train here; look at the interconnect, then `cona selftest`"
        return Finding(name="ranks", state="fail", found=found, remedy=remedy, details=details)
    found = f"2 ranks summed 1 MB over {name} in {1000 * facts['all_reduce_s']:.0f} ms"
    return Finding(name="ranks", state="ok", found=found, details=details)


def _megatron(facts: dict[str, Any]) -> Finding:
    if facts["megatron"] is None:
        found = facts["megatron_error"]
        return Finding(name="megatron-core", state="fail", found=found, remedy=INSTALL)
    return Finding(name="megatron-core", state="ok", found=f"{facts['megatron']} imports")
