"""Runs this repository's workflow through `snakemake --profile slurm`, and plays SLURM's users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON_BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def wait_until(what: Callable[[], object], seconds: float = 300) -> None:
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.2)


class Cluster:
    """The user's side of SLURM."""

    def snakemake(
        self, folder: Path, *arguments: str, snakefile: Path = ROOT / "Snakefile", **config: str
    ) -> subprocess.Popen[str]:
        """Start Snakemake under the SLURM profile; its output goes to <folder>/snakemake.txt."""
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile)]
        # A new SLURM answers at once; on a real cluster the first question comes after 40 s.
        command += ["--profile", str(ROOT / "slurm"), "--directory", str(folder)]
        command += ["--slurm-init-seconds-before-status-checks", "1", *arguments]
        command += ["--config", *(f"{key}={value}" for key, value in config.items())]
        with (folder / "snakemake.txt").open("a") as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                stdout=output,
                stderr=output,
                text=True,
                env=ENVIRONMENT,
                preexec_fn=_hear_interrupts,
            )

    def cona(self, folder: Path, *arguments: str) -> str:
        """Run `cona` on this machine, outside SLURM."""
        return self._ask(str(PYTHON_BIN / "cona"), *arguments, cwd=folder)

    def jobs(self, folder: Path, form: str, *options: str) -> list[list[str]]:
        """Return fields of all jobs submitted from a folder, finished ones included."""
        lines = self._ask(
            "squeue", "--noheader", "--states=all", *options, f"--format=%Z|{form}"
        ).splitlines()
        fields = (line.split("|") for line in lines)
        return [rest for where, *rest in fields if Path(where) == folder]

    def running(self, folder: Path, rule: str) -> str | None:
        """Return the id of the running job of a rule."""
        for number, comment in self.jobs(folder, "%i|%k", "--states=running"):
            if comment.startswith(f"rule_{rule}"):
                return number
        return None

    def do(self, *command: str) -> None:
        """Give one of SLURM's commands."""
        self._ask(*command)

    def restart_node(self, node: str, after_s: float) -> None:
        """Kill the daemon of a node, and start it again as systemd would."""
        pid_file = Path("/etc/slurm/slurm.conf").resolve().parent / "pid" / f"slurmd-{node}"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        time.sleep(after_s)
        daemon = subprocess.Popen(
            ["slurmd", "-D", "-N", node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        pid_file.write_text(f"{daemon.pid}\n")  # `slurm/local-cluster stop` ends it

    def _ask(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def _hear_interrupts() -> None:
    """Tests that run in a shell's background inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
