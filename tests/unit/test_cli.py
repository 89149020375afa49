"""The command line: what it lists, what it passes on, how it fails, and how soon it starts."""

import json
import re
import signal
import string
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cona import cli, config, registry, runner
from cona.cli.options import parse_change
from cona.cli.train import describe
from cona.errors import ConaError, ConfigError, DataError, RunError
from cona.result import RESULT_SCHEMA, sealed
from cona.runlog import sha256, write_atomic
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, TierSpec

MODEL = "gpt3-1.3b-proxy"
SLOW_TO_IMPORT = ("torch", "megatron", "deepspeed", "mlflow", "pandas", "matplotlib", "tokenizers")
RESULT = {
    "status": "finished",
    "perplexity_name": "ppl",
    "ppl": 12.345,
    "train_s": 1000.4,
    "samples": 640,
    "num_switches": 2,
}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[runner.RunRequest]:
    """Replace training by a function that notes what was asked and writes a result."""
    seen: list[runner.RunRequest] = []

    def run(request: runner.RunRequest, *, progress: bool, say: runner.Say) -> Path:
        seen.append(request)
        path = request.folder / "result.json"
        if not path.exists():
            metrics = path.with_name("metrics.jsonl")
            write_atomic(metrics, "")
            facts = {"schema": RESULT_SCHEMA, **RESULT, "metrics_sha256": sha256(metrics)}
            path.write_text(json.dumps(sealed(facts)))
        return path

    monkeypatch.setattr(runner, "run", run)
    return seen


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("policies", registry.policies),
        ("models", lambda: config.names(ModelSpec)),
        ("clusters", lambda: config.names(ClusterSpec)),
        ("tiers", lambda: config.names(TierSpec)),
        ("scales", lambda: config.names(ScaleSpec)),
    ],
)
def test_list_has_one_line_per_name_and_the_same_as_json(command, names) -> None:
    head, *lines = invoke(command).stdout.splitlines()
    assert head.split()[0] == "name"
    rows = json.loads(invoke(command, "--json").stdout)
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows] == list(names())
    assert all(line.endswith(row["description"]) for line, row in zip(lines, rows, strict=True))
    assert all(row["description"] for row in rows)


def test_json_of_a_model_holds_its_size() -> None:
    rows = {row["name"]: row for row in json.loads(invoke("models", "--json").stdout)}
    assert 1.2e9 < rows["gpt3-1.3b"]["num_params"] < 1.5e9


def test_help_and_version() -> None:
    assert "Examples:" in invoke("--help").stdout
    assert "Examples:" in invoke("run", "--help").stdout
    assert invoke("--version").stdout == "cona, version 0.1.0\n"


# --- run ----------------------------------------------------------------------------------------


def test_policies_and_seeds_run_one_after_the_other(requests, tmp_path: Path) -> None:
    policies = ["--policy", "cona", "--policy", "fixed-best-gbs8"]
    seeds = ["--seed", "3", "--seed", "4"]
    done = invoke("run", "--model", MODEL, *policies, *seeds, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    pairs = [("cona", 3), ("cona", 4), ("fixed-best-gbs8", 3), ("fixed-best-gbs8", 4)]
    assert [(r.policy, r.seed) for r in requests] == pairs
    assert {(r.model, r.tier.name, r.results) for r in requests} == {(MODEL, "quick", tmp_path)}
    assert done.stdout.splitlines()[0] == (
        f"{tmp_path}/quick/{MODEL}/cona/seed3: "
        "finished, ppl 12.35 after 1000 modelled s, 640 samples, 2 switches"
    )


@pytest.mark.parametrize("options", [[], ["--wait"]])
def test_who_waits_says_so_before_it_trains(
    requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def outwait(folder: Path, say: runner.Say) -> None:
        assert not requests
        say("waits")

    monkeypatch.setattr("cona.cli.train.outwait", outwait)
    done = invoke("run", "--model", MODEL, "--policy", "cona", "--out", str(tmp_path), *options)
    assert done.exit_code == 0, done.output
    folder = f"{tmp_path}/quick/{MODEL}/cona/seed0"
    assert (f"{folder}: waits" in done.stdout.splitlines()) is bool(options)
    assert len(requests) == 1


def test_a_finished_run_is_said_to_be_skipped(requests, tmp_path: Path) -> None:
    command = ["run", "--model", MODEL, "--policy", "cona", "--out", str(tmp_path)]
    assert "skipped" not in invoke(*command).stdout
    assert "(was finished: skipped)" in invoke(*command).stdout


def test_changes_of_the_tier_reach_the_run(requests, tmp_path: Path) -> None:
    changes = ["--set", "budget.iterations=50", "--set", "learning_rate.rule=linear"]
    data = ["--data", "text:some/where"]
    out = ["--out", str(tmp_path)]
    invoke("run", "--model", MODEL, "--policy", "cona", "--tier", "smoke", *changes, *data, *out)
    tier = requests[0].tier
    assert tier.budget.iterations == 50
    assert tier.learning_rate.rule == "linear"
    assert tier.data.corpus == "text:some/where"
    assert tier.ladder == config.load(TierSpec, "smoke").ladder


def test_a_dry_run_trains_nothing(requests, tmp_path: Path) -> None:
    command = ["run", "--model", MODEL, "--policy", "cona", "--out", str(tmp_path)]
    before = invoke(*command, "--dry-run")
    folder = f"{tmp_path}/quick/{MODEL}/cona/seed0"
    assert re.fullmatch(f"{folder}: to be trained, for [0-9,.]+ modelled s\n", before.stdout)
    assert not requests
    assert not list(tmp_path.iterdir())
    invoke(*command)
    assert "has a result of other settings" in invoke(*command, "--dry-run").stdout
    result = requests[0].folder / "result.json"
    result.write_text(result.read_text().replace("640", "641"))
    damaged = invoke(*command, "--dry-run").stdout
    assert damaged.endswith(
        "result.json is damaged: it does not match its checksum; would be repeated\n"
    )


def test_a_run_without_perplexity_says_so() -> None:
    line = describe(RESULT | {"status": "diverged", "ppl": None})
    assert line.startswith("diverged, no perplexity after 1000 modelled s")


texts = st.text(string.printable, max_size=20)
keys = st.lists(st.sampled_from(["budget", "gbs_min", "z"]), min_size=1).map(".".join)
scalars = st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), texts)


@given(key=keys, value=scalars)
def test_set_reads_back_any_yaml_scalar(key: str, value: object) -> None:
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n")
    assert parse_change(f"{key}={text}") == (key, value)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "gpt3-1.3b-prox"], f"did you mean '{MODEL}'?"),
        (["--policy", "conna"], "unknown policy 'conna': did you mean 'cona'?"),
        (["--tier", "quik"], "unknown tier 'quik': did you mean 'quick'?"),
        (["--set", "budget"], "--set 'budget': expected KEY=VALUE"),
        (["--set", "budget.iterations=["], "'[' is not a YAML value"),
        (["--set", "budget.iteration=5"], "did you mean 'iterations'?"),
        (["--set", "name.x=5"], "'name' in 'name.x' is a value without keys"),
        (["--set", "ladder.gbs_max=48"], "nearest: "),
    ],
)
def test_bad_input_is_one_sentence_with_status_2(arguments: list[str], sentence: str) -> None:
    valid = {"--model": MODEL, "--policy": "cona", "--tier": "smoke"}
    given_options = valid | {arguments[0]: arguments[1]}
    failed = invoke("run", "--dry-run", *(word for pair in given_options.items() for word in pair))
    assert failed.exit_code == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("Error: ")
    assert sentence in failed.stderr
    assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x is wrong"), 2),
        (DataError("x is wrong"), 2),
        (RunError("x is wrong"), 1),
        (ConaError("x is wrong"), 1),
        (runner.Interrupted(signal.SIGTERM), 143),
        (runner.Interrupted(signal.SIGINT), 130),
    ],
)
def test_status_tells_what_kind_of_error(monkeypatch, tmp_path, error, status: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runner, "run", fail)
    failed = invoke("run", "--model", MODEL, "--policy", "cona", "--out", str(tmp_path))
    assert failed.exit_code == status
    assert failed.stderr == f"Error: {error}\n"


def test_other_exceptions_are_not_hidden(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "run", lambda *_, **__: 1 / 0)
    failed = invoke("run", "--model", MODEL, "--policy", "cona", "--out", str(tmp_path))
    assert isinstance(failed.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "name"), [(["modles"], "models"), (["run", "--modle", "x"], "--model")]
)
def test_click_offers_the_nearest_command_and_option(arguments: list[str], name: str) -> None:
    failed = invoke(*arguments)
    assert failed.exit_code == 2
    assert f"'{name}'" in failed.stderr


# --- start --------------------------------------------------------------------------------------

QUICK_CALLS = [
    ["--help"],
    ["policies"],
    ["models"],
    ["clusters"],
    ["tiers", "--json"],
    ["estimate", "--tier", "smoke"],
    ["run", "--model", MODEL, "--policy", "cona", "--dry-run"],
    ["plan", "--planner", "metis", "--model", MODEL, "--cluster", "a100x4-2node", "--gbs", "64"],
    ["replay", "--help"],
]


@pytest.mark.parametrize("arguments", QUICK_CALLS, ids=" ".join)
def test_calls_that_do_not_train_import_nothing_slow(arguments: list[str]) -> None:
    code = (
        "import sys; from cona.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: status = end.code\n"
        f"found = [name for name in {SLOW_TO_IMPORT!r} if name in sys.modules]\n"
        "sys.exit(status or ' '.join(found) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
