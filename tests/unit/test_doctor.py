"""`cona doctor`: what it says of machines that lack something, and once of this one."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cona import cli, doctor
from cona.doctor import Finding, disks, hardware, pins, ranks, services, software
from cona.doctor.ask import Answer, Asked
from cona.doctor.pins import Pin

RESULTS = Path("results")
FACTS = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "gpus": 2,
    "backend": "nccl",
    "low": 3.0,
    "high": 3.0,
    "all_reduce_s": 0.004,
    "megatron": "0.16.1",
}
GPUS = "NVIDIA A100-SXM4-80GB, 81920 MiB, 550.54\n"


def found(check: doctor.Check, results: Path = RESULTS, **answers: Answer) -> dict[str, Finding]:
    """Return a check's findings by name, on a machine whose commands answer so."""
    return {finding.name: finding for finding in check(results, answers.get)}


def said(out: str = "", code: int | None = 0, err: str = "") -> Answer:
    return Answer(code=code, out=out, err=err)


def engine(**facts: object) -> Answer:
    return said(json.dumps({k: v for k, v in (FACTS | facts).items() if v is not ...}))


# --- software -------------------------------------------------------------------------------------


def pin(text: str, extra: str | None = None) -> Pin:
    return Pin(requirement=Requirement(text), extra=extra)


def test_another_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "pythons", lambda: SpecifierSet(">=3.98,<3.99"))
    finding = found(software.python)["python"]
    assert finding.state == "fail"
    assert "not <3.99,>=3.98" in finding.found


@pytest.mark.parametrize(
    ("wanted", "state", "words"),
    [
        (["click>=8", "numpy"], "ok", "2 packages"),
        (["click>=8", "numpy<1"], "warn", "not numpy <1"),
        (["no-such-package>=2", "numpy<1"], "fail", "no-such-package >=2 is missing; numpy"),
    ],
)
def test_packages(monkeypatch: pytest.MonkeyPatch, wanted: list[str], state: str, words) -> None:
    monkeypatch.setattr(software, "pins", lambda: [pin(w) for w in wanted] + [pin("x9", "dev")])
    finding = found(software.packages)["packages"]
    assert finding.state == state
    assert words in finding.found
    assert bool(finding.remedy) == (state != "ok")
    assert len(finding.details) == len(wanted)


def test_extras_are_absent_or_old_but_never_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [pin("no-such-package", "bo"), pin("click<1", "gpu"), pin("click", "wikitext")]
    monkeypatch.setattr(software, "pins", lambda: known)
    states = {name: finding.state for name, finding in found(software.extras).items()}
    assert states == {"extra bo": "absent", "extra gpu": "warn", "extra wikitext": "ok"}


def test_pins_are_those_of_the_project() -> None:
    known = {str(one): one.extra for one in pins.pins()}
    assert known["megatron-core ==0.16.1"] is None
    assert {"bo", "gpu", "wikitext", "dev"} <= set(known.values())
    assert set(software.EXTRAS) == set(known.values()) - {None, "dev"}
    assert pins.pythons().contains("3.11.9")


def test_an_installed_wheel_knows_its_pins_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_checkout", dict)
    known = {str(one): one.extra for one in pins.pins()}
    assert known["megatron-core ==0.16.1"] is None
    assert "bo" in known.values()


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (said("warning\n0.19.8\n"), "ok", "0.19.8"),
        (said(code=1, err="Traceback\nImportError: no ops\n"), "fail", "ImportError: no ops"),
        (said(code=None), "fail", "no answer within"),
        (said(code=-11), "fail", "SIGSEGV"),
    ],
)
def test_deepspeed(answer: Answer, state: str, words: str) -> None:
    finding = found(software.deepspeed, deepspeed=answer)["deepspeed"]
    assert finding.state == state
    assert words in finding.found


# --- hardware -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "free", "state"),
    [("1", 8e9, "ok"), (None, 8e9, "warn"), ("many", 8e9, "warn"), ("1", 1e9, "warn")],
)
def test_cores(monkeypatch: pytest.MonkeyPatch, threads: str | None, free: float, state) -> None:
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    memory = SimpleNamespace(available=int(free))
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: memory)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    finding = found(hardware.cores)["cores"]
    assert finding.state == state
    assert finding.details["cores"] == 3


def test_gpus_are_counted_by_kind() -> None:
    finding = found(hardware.gpu, gpus=said(2 * GPUS))["gpu"]
    assert finding.found == "2 x NVIDIA A100-SXM4-80GB, 81920 MiB, driver 550.54"
    assert [gpu["memory.total"] for gpu in finding.details["gpus"]] == ["81920 MiB"] * 2


def test_no_gpu_is_no_fault_and_a_broken_driver_a_warning() -> None:
    assert found(hardware.gpu)["gpu"].state == "absent"
    broken = found(hardware.gpu, gpus=said("NVIDIA-SMI has failed\n", code=9))["gpu"]
    assert (broken.state, broken.found) == ("warn", "NVIDIA-SMI has failed")


def test_ranks_that_work() -> None:
    answers = found(hardware.engine, ranks=engine(), gpus=said(GPUS))
    assert {f.state for f in answers.values()} == {"ok"}
    assert list(answers) == ["torch", "ranks", "megatron-core"]
    assert answers["ranks"].found == "2 ranks summed 1 MB over NCCL in 4 ms"


def test_a_torch_that_does_not_see_the_gpus_is_told() -> None:
    answers = found(hardware.engine, ranks=engine(gpus=0, cuda=None), gpus=said(GPUS))
    assert answers["torch"].state == "warn"
    assert "built for CPU" in answers["torch"].found
    assert found(hardware.engine, ranks=engine(gpus=0, cuda=None))["torch"].state == "ok"


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        ({"high": 2.5}, "ranks", "1 + 2 gave 3 to 2.5"),
        ({"low": ..., "error": "rank 1 died"}, "ranks", "rank 1 died"),
        ({"megatron": None, "megatron_error": "ImportError: x"}, "megatron-core", "ImportError: x"),
    ],
)
def test_an_engine_that_does_not_work_fails(facts: dict, name: str, words: str) -> None:
    answers = found(hardware.engine, ranks=engine(**facts))
    assert [f.name for f in answers.values() if f.state == "fail"] == [name]
    assert words in answers[name].found


def test_ranks_that_hang_fail() -> None:
    answers = found(hardware.engine, ranks=said(code=None))
    assert {f.state for f in answers.values()} == {"fail"}


def test_a_broken_megatron_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    facts = ranks._megatron()
    assert facts["megatron"] is None
    assert "ModuleNotFoundError" in facts["megatron_error"]


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "state"), [(20e9, "ok"), (10e9, "ok"), (9e9, "warn"), (0.2e9, "warn"), (1e6, "fail")]
)
def test_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, state: str) -> None:
    monkeypatch.setattr(disks, "free_bytes", lambda folder: int(free))
    finding = found(disks.results, tmp_path / "not" / "there")["results"]
    assert finding.state == state
    assert not list(tmp_path.iterdir())
    assert ("free " in finding.remedy) == (state != "ok")


def test_a_folder_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disks.tempfile, "TemporaryFile", refuse)
    monkeypatch.setenv("CONA_CACHE_DIR", str(tmp_path))
    finding = found(disks.cache)["cache"]
    assert (finding.state, finding.remedy) == ("fail", "set CONA_CACHE_DIR")
    assert "Permission denied" in finding.found


def test_the_small_shared_memory_of_a_container_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "SHARED", Path.cwd())
    usage = SimpleNamespace(total=64_000_000)
    monkeypatch.setattr(disks.shutil, "disk_usage", lambda path: usage)
    assert "--shm-size" in found(disks.shared_memory)["shared memory"].remedy
    monkeypatch.setattr(disks, "SHARED", Path("no/such/folder"))
    assert found(disks.shared_memory)["shared memory"].state == "absent"


def test_prepared_texts_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONA_CACHE_DIR", str(tmp_path))
    assert "cona data" in found(disks.data)["data"].remedy
    (tmp_path / "data" / "0123").mkdir(parents=True)
    (tmp_path / "data" / ".draft").mkdir()
    finding = found(disks.data)["data"]
    assert finding.details["prepared"] == 1
    assert finding.details["stdlib_files"] > 100


# --- services -------------------------------------------------------------------------------------


def test_no_slurm() -> None:
    assert found(services.slurm)["slurm"].state == "absent"
    assert found(services.slurm, partitions=said("cpu\tup\t1\n"))["slurm"].state == "absent"


def test_partitions_and_own_jobs() -> None:
    answers = {"partitions": said("gpu*\tup\t4\nbig\tdrain\t1\n"), "queue": said("17\n18\n")}
    finding = found(services.slurm, **answers)["slurm"]
    assert finding.state == "ok"
    assert finding.found == "gpu* (4 nodes, up), big (1 nodes, drain); 2 jobs of yours"
    assert finding.details["partitions"][1] == {"name": "big", "state": "drain", "nodes": 1}


def test_a_silent_controller_is_a_warning() -> None:
    down = said(code=1, err="slurm_load_jobs error: Unable to contact slurm controller\n")
    finding = found(services.slurm, partitions=said("gpu*\tup\t4\n"), queue=down)["slurm"]
    assert finding.state == "warn"
    assert "Unable to contact" in finding.found


@pytest.fixture
def server() -> Iterator[Callable[[bytes], str]]:
    """Return a function that starts a server which gives one answer, and returns its address."""
    opened = []

    def start(reply: bytes) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        opened.append(listening)

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(1000)
            if reply:
                connection.sendall(reply)
                connection.close()
            else:
                opened.append(connection)  # silent: neither an answer nor an end

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for one in opened:
        one.close()


def http(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("status", "state"),
    [("200 OK", "ok"), ("401 Unauthorized", "ok"), ("503 Down", "warn"), ("404 No", "warn")],
)
def test_a_tracking_server(monkeypatch: pytest.MonkeyPatch, server, status: str, state) -> None:
    address = server(http(status))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{address}")
    finding = found(services.mlflow)["mlflow"]
    assert finding.state == state, finding
    assert "secret" not in finding.found


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("http://127.0.0.1:1", "refused"),
        ("postgresql://127.0.0.1:1/mlflow", "refused"),
        ("postgresql://127.0.0.1:no/mlflow", "Port could not be cast"),
        ("http://127.0.0.1:no", "nonnumeric port"),
        ("databricks", "not a database or a server"),
        ("databricks://profile", "only MLflow itself"),
        ("ftp://somewhere", "not a database or a server"),
        ("sqlite:///no/such/folder/mlflow.db", "cannot be written"),
    ],
)
def test_an_unreachable_store_is_a_warning(monkeypatch, uri: str, words: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    finding = found(services.mlflow)["mlflow"]
    assert finding.state == "warn"
    assert words in finding.found


def test_a_silent_server_is_waited_for_no_longer_than_promised(monkeypatch, server) -> None:
    monkeypatch.setattr(services, "LIMIT_S", 0.3)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{server(b'')}")
    start_s = time.monotonic()
    words = found(services.mlflow)["mlflow"].found
    assert "no answer within 0.3 s" in words or "timed out" in words
    assert time.monotonic() - start_s < 5


def test_a_damaged_database_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    assert found(services.mlflow)["mlflow"].state == "warn"


def test_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.shutil, "which", lambda name: None)
    assert found(services.browser)["browser"].state == "absent"
    monkeypatch.setattr(services.shutil, "which", lambda name: f"/opt/{name}")
    assert found(services.browser)["browser"].found == "/opt/chromium"


# --- asking ---------------------------------------------------------------------------------------


def test_commands_run_side_by_side_and_those_that_hang_are_ended(tmp_path: Path) -> None:
    child = "import subprocess; subprocess.run(['sleep', '600'])"
    commands = {
        "hangs": (sys.executable, "-c", child),
        "says": ("sh", "-c", "echo well; echo but >&2; exit 3"),
        "is not there": ("no-such-command",),
    }
    start_s = time.monotonic()
    with Asked(commands, limit_s=0.5) as answers:
        assert answers("is not there") is None
        assert answers("hangs") == Answer(code=None)
        assert answers("says") in (said("well\n", 3, "but\n"), Answer(code=None))
    assert time.monotonic() - start_s < 20


def test_an_answer_is_complete() -> None:
    with Asked({"says": ("sh", "-c", "echo well; echo but >&2; exit 3")}) as answers:
        answer = answers("says")
    assert answer == said("well\n", 3, "but\n")
    assert answer is not None and answer.reason == "but"


def test_processes_of_a_command_end_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; wait"
    with Asked({"hangs": ("sh", "-c", script)}):
        while not (pid_file.is_file() and pid_file.read_text().strip()):
            time.sleep(0.01)
    pid = int(pid_file.read_text())
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s and is_running(pid):
        time.sleep(0.01)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the command ----------------------------------------------------------------------------------


def invoke(monkeypatch: pytest.MonkeyPatch, *states: str, arguments: tuple[str, ...] = ()):
    def check(results: Path, answers: object) -> Iterator[Finding]:
        for state in states:
            yield Finding(name=f"{state} one", state=state, found="words " * 20, remedy="do it")

    monkeypatch.setattr(doctor, "CHECKS", (check,))
    monkeypatch.setattr(doctor, "questions", dict)
    return CliRunner().invoke(cli.main, ["doctor", *arguments])


@pytest.mark.parametrize(("states", "status"), [(("ok", "warn", "absent"), 0), (("fail",), 1)])
def test_only_a_fault_fails(monkeypatch: pytest.MonkeyPatch, states, status: int) -> None:
    done = invoke(monkeypatch, *states)
    assert done.exit_code == status
    assert done.stdout.splitlines()[-1] == ", ".join(f"1 {state}" for state in states)
    done = invoke(monkeypatch, *states, arguments=("--json",))
    assert done.exit_code == status
    report = json.loads(done.stdout)
    assert report["passed"] is (status == 0)
    assert [one["state"] for one in report["checks"]] == list(states)
    assert set(report["checks"][0]) == {"name", "state", "found", "remedy", "details"}


def test_the_table_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke(monkeypatch, "ok", "warn").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("words") for line in lines) == 40


@pytest.mark.slow
def test_this_machine_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For real: 7 s of processor time, of which little runs one after the other."""
    monkeypatch.chdir(tmp_path)
    before = os.times()
    findings = {one.name: one for some in doctor.examine(RESULTS) for one in some}
    after = os.times()
    assert {f.name for f in findings.values() if f.state == "fail"} == set()
    assert findings["ranks"].details["backend"] in ("gloo", "nccl")
    assert findings["megatron-core"].state == findings["deepspeed"].state == "ok"
    assert not list(tmp_path.iterdir())
    assert after.children_user - before.children_user < 20
