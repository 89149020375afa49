"""Help, completion, exit status and the page that is made of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from cona import cli, config, registry, tracking
from cona.cli import group, reference
from cona.cli.completion import Bash
from cona.errors import ConaError, ConfigError
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, TierSpec

ROOT = Path(cli.__file__).parents[2]
SPECS = {"models": ModelSpec, "clusters": ClusterSpec, "tiers": TierSpec, "scales": ScaleSpec}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def completed(*words: str) -> list[str]:
    *arguments, incomplete = words
    found = Bash(cli.main, {}, "cona", "_CONA_COMPLETE").get_completions(arguments, incomplete)
    return [item.value for item in found if item.type == "plain"]


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_summary_and_examples(command: click.Command) -> None:
    shown = invoke(str(command.name), "--help").stdout
    assert re.search(rf"  Examples?:\n    (?:eval.*)?\bcona {command.name}\b", shown)
    assert len(command.get_short_help_str(1000)) <= 66


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_option_says_what_it_is(command: click.Command) -> None:
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


def test_help_lists_every_command_once_in_a_line() -> None:
    shown = invoke("--help").stdout
    summaries = re.findall(r"^  ([a-z]+)  +\S.*[.?]$", shown, re.MULTILINE)
    assert summaries == [command.name for command in cli.COMMANDS]
    assert set(summaries) == set(cli.main.commands)
    assert "..." not in shown.partition("Options:")[2]


@pytest.mark.parametrize("name", ["plan", "run"])
def test_groups_hold_every_option_once(name: str) -> None:
    command = cli.main.commands[name]
    assert isinstance(command, group.Grouped)
    grouped = [option for names in command.groups.values() for option in names]
    assert sorted(grouped) == sorted(str(one.name) for one in command.params)
    shown = invoke(name, "--help").stdout
    assert all(f"\n{title}:\n" in shown for title in command.groups)
    assert "Other options:\n  -h, --help" in shown


def test_the_page_is_current() -> None:
    written = (ROOT / reference.PAGE).read_text(encoding="utf-8")
    assert written == reference.page(), "run: python -m cona.cli.reference"


# --- JSON -----------------------------------------------------------------------------------------

PLAN = ("plan", "--model", "gpt3-1.3b-proxy", "--cluster", "a100x4-2node", "--gbs", "64")
JSON = [("policies",), ("models",), ("clusters",), ("tiers",), ("scales",), PLAN]


@pytest.mark.parametrize("arguments", JSON, ids=lambda arguments: arguments[0])
def test_help_names_the_keys_of_the_json(arguments: tuple[str, ...]) -> None:
    content = json.loads(invoke(*arguments, "--json").stdout)
    keys = set(content if isinstance(content, dict) else content[0])
    if arguments[0] in SPECS:  # "all keys of their YAML files"
        keys -= set(SPECS[arguments[0]].model_fields)
    told = invoke(arguments[0], "--help").stdout.partition("With --json:")[2]
    assert {key for key in keys if not re.search(rf"\b{key}\b", told)} == set()


def test_json_of_prepared_texts(monkeypatch, tmp_path: Path, small_corpus: str) -> None:
    monkeypatch.setenv("CONA_CACHE_DIR", str(tmp_path))
    command = ("data", "--model", "bert-large-proxy", "--data", small_corpus)
    (row,) = json.loads(invoke(*command, "--json").stdout)
    assert set(row) == {"model", "corpus", "tokens", "content_hash"}
    (line,) = invoke(*command).stdout.splitlines()
    assert line.startswith(f"bert-large-proxy: {small_corpus}, tokens: {row['tokens']['train']} ")


def test_json_of_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tracking.ImportReport(num_new=1, num_known=2, states={"FINISHED": 3})
    monkeypatch.setattr(tracking, "import_runs", lambda results, tier, uri: found)
    content = json.loads(invoke("track", "--uri", "http://me:secret@host", "--json").stdout)
    assert content == {
        "uri": "http://***@host",
        "num_new": 1,
        "num_known": 2,
        "states": {"FINISHED": 3},
    }


def test_json_of_written_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = ("--tier", "smoke", "--out", str(tmp_path))
    content = json.loads(invoke("planners", *out, "--json").stdout)
    assert [Path(path).name for path in content["files"]] == ["planners.csv", "planners.md"]
    table, _, files = invoke("planners", *out).stdout.rpartition("\n\n")
    assert files.split() == content["files"]
    assert "how many % longer" in table
    best = [row for row in content["rows"] if row["planner"] == "fixed-best"]
    assert [row["over_best"] for row in best] == [0, 0, 0]


def test_json_of_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cona.replay import trace, trace_csv

    monkeypatch.setattr(trace, "read_recording", lambda path: SimpleNamespace(steps=[1, 2, 3]))
    monkeypatch.setattr(trace_csv, "write_csv", lambda recording, out: 2)
    content = json.loads(invoke("trace", "run", "--out", "gns.csv", "--json").stdout)
    assert content == {"out": "gns.csv", "num_rows": 2, "num_iterations": 3}


# --- completion -----------------------------------------------------------------------------------


def test_names_are_completed() -> None:
    assert completed("run", "--policy", "cona-p") == ["cona-paper"]
    assert completed("run", "--model", "gpt3") == ["gpt3-1.3b", "gpt3-1.3b-proxy"]
    assert completed("plan", "--cluster", "dgx-h") == ["dgx-h100", "dgx-h200"]
    assert completed("tables", "--tier", "") == config.names(TierSpec)
    assert completed("tables", "--tier", "paper@") == ["paper@modelled", "paper@tiny"]
    assert completed("run", "--tier", "my.yaml@t") == ["my.yaml@tiny"]
    assert completed("plan", "--planner", "a") == ["all", "aceso", "alpa", "amp", "amp-memory=on"]
    assert completed("predict", "--preset", "calc")[0] == "calculon"
    assert completed("plan", "--emit", "m") == ["megatron"]
    assert completed("replay", "--policy", "") == list(registry.policies())
    assert completed("plan", "--lad") == ["--ladder"]
    assert completed("doc") == ["doctor"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("cona tables --tier pap", "plain,paper"),
        ("cona tables --tier paper@t", "plain,@tiny"),
        ("cona tables --tier=paper@t", "plain,@tiny"),
        ("cona tables --tier=pap", "plain,paper"),
        ("cona plan --planner amp-memory=o", "plain,on"),
        ("cona plan --planner ", "plain,all"),
    ],
)
def test_bash_is_answered_from_its_last_word_break(monkeypatch, line: str, answer: str) -> None:
    """Bash passes on the line, and replaces what follows the break; an @ stays in the word."""
    for name, value in (("LINE", f"{line}x"), ("POINT", str(len(line))), ("WORDBREAKS", " =@:")):
        monkeypatch.setenv(f"COMP_{name}", value)
    complete = Bash(cli.main, {}, "cona", "_CONA_COMPLETE")
    assert complete.complete().splitlines()[0] == answer
    assert "COMP_LINE=" in complete.source()


def test_a_file_may_stand_for_a_name() -> None:
    complete = Bash(cli.main, {}, "cona", "_CONA_COMPLETE")
    (item,) = complete.get_completions(["run", "--model"], "./my")
    assert (item.type, item.value) == ("file", "./my")


def test_broken_files_do_not_break_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConfigError("a file is broken")

    monkeypatch.setattr(registry, "policies", fail)
    assert completed("run", "--policy", "co") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_shells(shell: str) -> None:
    done = invoke("completion", shell)
    assert done.exit_code == 0
    assert f"_CONA_COMPLETE={shell}_complete" in done.stdout


def test_bash_reads_its_script() -> None:
    done = invoke("completion", "bash")
    read = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True)
    assert (read.returncode, read.stderr) == (0, "")
    assert invoke("completion", "tcsh").exit_code == 2


# --- exit status ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ConaError("x is wrong"), 1, "Error: x is wrong\n"),
        (ConfigError("x is wrong"), 2, "Error: x is wrong\n"),
        (OSError(28, "No space left on device", "results"), 1, "Error: results: No space left"),
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
        (click.UsageError("no such option"), 2, "no such option"),
    ],
)
def test_status_and_sentence(monkeypatch: pytest.MonkeyPatch, error, status, sentence) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(registry, "policies", fail)
    failed = invoke("policies")
    assert failed.exit_code == status
    assert sentence in failed.stderr
    assert failed.stdout == ""
    assert failed.exception is None or isinstance(failed.exception, SystemExit)


def test_the_statuses_are_documented() -> None:
    shown = invoke("--help").stdout.partition("Exit status:")[2]
    assert re.findall(r"^    (\d+|128 \+ N)  ", shown, re.MULTILINE) == ["0", "1", "2", "128 + N"]
    assert {int(n) for n in re.findall(r"\b(1[3-9]\d) ", shown)} == {
        128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }


def test_a_reader_that_leaves_early_sees_no_error() -> None:
    code = "from cona.cli import main; main(['policies', '--json'])"
    command = f"{sys.executable} -c {json.dumps(code)} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
