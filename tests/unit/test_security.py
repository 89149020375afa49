"""Nothing that is read can run code, and no name can leave its folder or a shell's word."""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cona import config, registry
from cona.cli import main
from cona.errors import ConfigError, DamageError
from cona.pipeline import Pipeline, check_settings
from cona.specs import ClusterSpec, ModelSpec, TierSpec

ROOT = Path(__file__).parents[2]
UNPICKLING = ROOT / "cona" / "engine" / "unpickling.py"
"""The one place that may unpickle."""
HOSTILE = (
    *("x; touch pwned", "$(touch pwned)", "`touch pwned`", "a b", "x'y", 'x"y', "a\nb", "a|b"),
    *("../x", "/etc/passwd", "..", ".", "-rf", "a/b", "a\\b", "~", "*", "{model}", "\0", "a\x1bb"),
    *("", "ü", "x&y", "x>y", "#x", "!x", "a=b"),
)


# --- the source -----------------------------------------------------------------------------------


def sources() -> Iterator[Path]:
    """Yield every Python file that a user runs; tests pickle toys of their own."""
    for folder in ("cona", "baselines", "benchmarks", "docs", "slurm", "workflow", "examples"):
        yield from (ROOT / folder).rglob("*.py")


def named(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def keyword(call: ast.Call, name: str) -> object:
    for given_one in call.keywords:
        if given_one.arg == name:
            value = given_one.value
            return value.value if isinstance(value, ast.Constant) else "not a constant"
    return None


UNSAFE = {
    "pickle.load": "unpickles",
    "pickle.loads": "unpickles",
    "pickle.Unpickler": "unpickles",
    "marshal.loads": "unpickles",
    "shelve.open": "unpickles",
    "dill.load": "unpickles",
    "joblib.load": "unpickles",
    "pd.read_pickle": "unpickles",
    "yaml.load": "builds objects",
    "yaml.unsafe_load": "builds objects",
    "yaml.full_load": "builds objects",
    "os.system": "starts a shell",
    "os.popen": "starts a shell",
    "subprocess.getoutput": "starts a shell",
    "subprocess.getstatusoutput": "starts a shell",
    "tempfile.mktemp": "names a file that anybody may take",
    "eval": "runs text",
    "exec": "runs text",
}


def findings(code: str) -> Iterator[str]:
    """Yield what is unsafe in Python code."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = named(node.func)
            if why := UNSAFE.get(name):
                yield f"line {node.lineno}: {name} {why}"
            if name == "torch.load" and keyword(node, "weights_only") is not True:
                yield f"line {node.lineno}: torch.load without weights_only=True"
            if name.endswith(("np.load", "numpy.load")) and keyword(node, "allow_pickle"):
                yield f"line {node.lineno}: {name} unpickles"
            if keyword(node, "shell") not in (None, False):
                yield f"line {node.lineno}: shell={keyword(node, 'shell')}"
        if isinstance(node, ast.ClassDef):
            for base in map(named, node.bases):
                if base.endswith("Unpickler"):
                    yield f"line {node.lineno}: {base} unpickles"
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "shelve"):
            yield f"line {node.lineno}: hides {node.module}"


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "pickle.load(file)",
        "from pickle import loads",
        "class Mine(pickle.Unpickler): pass",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "subprocess.run(line, shell=True)",
        "subprocess.Popen(line, shell=wanted)",
        "os.system(line)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "tempfile.mktemp()",
    ],
)
def test_unsafe_code_is_found(code: str) -> None:
    assert list(findings(code))


def test_safe_code_is_left_alone() -> None:
    code = """
torch.load(path, map_location="cpu", weights_only=True)
yaml.safe_load(text)
subprocess.run([program, text], shell=False)
model.eval()
np.load(path, mmap_mode="r")
pickle.UnpicklingError
"""
    assert not list(findings(code))


def test_the_tree_unpickles_in_one_place_and_starts_no_shell() -> None:
    found = {
        str(path.relative_to(ROOT)): text
        for path in sources()
        if path != UNPICKLING and (text := list(findings(path.read_text(encoding="utf-8"))))
    }
    assert not found
    assert len(list(findings(UNPICKLING.read_text(encoding="utf-8")))) == 1  # the restricted one
    assert len(list(sources())) > 100


def test_shell_lines_of_the_workflow_name_nothing_that_is_not_quoted() -> None:
    """Wildcards are names and numbers, logs lie below one; all else comes quoted from Pipeline."""
    safe = {"wildcards.model", "wildcards.seed", "params.options", "params.policies", "log"}
    lines = [
        line
        for path in (ROOT / "workflow" / "rules").glob("*.smk")
        for shell in re.findall(r"    shell:\n((?: {8,}.*\n)+)", path.read_text(encoding="utf-8"))
        for line in shell.splitlines()
    ]
    assert len(lines) > 5
    assert {name for line in lines for name in re.findall(r"\{([\w.]+)[^}]*\}", line)} <= safe


def test_the_ui_is_served_on_loopback_only() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (served,) = re.findall(r"mlflow server.*", recipe)
    assert "--host 127.0.0.1" in served
    assert "0.0.0.0" not in recipe


# --- names ----------------------------------------------------------------------------------------


def is_word(name: str) -> bool:
    """Return whether a name is one word of a shell, and the name of one file below its folder."""
    return (
        shlex.quote(name) == name
        and Path(name).name == name
        and not name.startswith((".", "-", "~"))
    )


TIER = yaml.safe_load((ROOT / "config" / "tiers" / "smoke.yaml").read_text(encoding="utf-8"))
MODEL = yaml.safe_load(
    (ROOT / "config" / "models" / "gpt3-1.3b-proxy.yaml").read_text(encoding="utf-8")
)
CLUSTER = yaml.safe_load(
    (ROOT / "config" / "clusters" / "dgx-a100.yaml").read_text(encoding="utf-8")
)
KINDS = [(TierSpec, TIER), (ModelSpec, MODEL), (ClusterSpec, CLUSTER)]
texts = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="ab./-;$ {}'\"`\\\n@=", max_size=12),
    st.sampled_from(HOSTILE),
)


@given(texts)
def test_a_name_is_one_word_or_refused(name: str) -> None:
    for kind, content in KINDS:
        try:
            spec = config.validate(kind, {**content, "name": name}, where="x")
        except ConfigError:
            continue
        assert is_word(spec.name)


@given(texts)
def test_models_and_policies_of_a_tier_are_words_or_refused(name: str) -> None:
    for key in ("models", "policies"):
        try:
            tier = config.validate(TierSpec, {**TIER, key: [name]}, where="x")
            for policy in tier.policies:
                registry.policy(policy)
        except ConfigError:
            continue
        assert is_word(name) or name == "a=b", (key, name)


@given(st.sampled_from(["cona-cost=", "fixed-best-gbs", "cona-z", "cona-"]), texts)
def test_parameters_of_policies_are_words_or_refused(start: str, value: str) -> None:
    try:
        registry.policy(start + value)
    except ConfigError:
        return
    assert is_word(start + value)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("option", ["--model", "--policy", "--tier", "--set"])
def test_a_hostile_name_on_the_command_line_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, hostile: str
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {"--model": "gpt3-1.3b-proxy", "--policy": "cona", "--tier": "smoke"}
    chosen[option] = f"cluster={hostile}" if option == "--set" else hostile
    arguments = [word for pair in chosen.items() for word in pair]
    done = CliRunner().invoke(main, ["run", "--dry-run", "--out", str(tmp_path / "o"), *arguments])
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


@given(texts.filter(lambda text: "\0" not in text))
def test_options_of_a_pipeline_are_words_whatever_the_folder(folder: str) -> None:
    tier = config.validate(TierSpec, TIER, where="x")
    pipeline = Pipeline(tier=tier, spec=f"{folder}.yaml", results=folder)
    for options in (pipeline.run_options, pipeline.report_options, pipeline.data_options):
        assert len(shlex.split(options)) % 2 == 0
    assert shlex.split(pipeline.report_options) == ["--tier", f"{folder}.yaml", "--out", folder]


@pytest.mark.parametrize("results", ["x{model}", "}", "a\nb"])
def test_a_results_folder_that_snakemake_would_misread_is_refused(results: str) -> None:
    with pytest.raises(ConfigError, match="a folder without braces"):
        check_settings({"results": results})


# --- checkpoints ----------------------------------------------------------------------------------


class RunsCode:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def bait(tmp_path: Path) -> Iterator[RunsCode]:
    yield RunsCode(tmp_path / "pwned")
    assert not (tmp_path / "pwned").exists()


def test_the_bait_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(RunsCode(tmp_path / "pwned")))
    assert (tmp_path / "pwned").exists()


def test_a_state_that_runs_code_is_not_read_though_its_checksum_is_right(
    tmp_path: Path, bait: RunsCode
) -> None:
    import hashlib

    import torch

    from cona.engine.checkpoint import MAGIC, read_state

    body = io.BytesIO()
    torch.save({"fingerprint": "f", "weights": bait}, body)
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    (tmp_path / "state").write_bytes(MAGIC + digest + b"\n" + body.getvalue())
    with pytest.raises(DamageError, match="could run code: it is not read"):
        read_state(tmp_path / "state", "f")


def test_scalars_that_run_code_are_not_read(tmp_path: Path, bait: RunsCode) -> None:
    import torch

    from cona.engine.unpickling import load_plain

    torch.save({"num_updates": 3, "random": bait}, tmp_path / "scalars.pt")
    with pytest.raises(DamageError, match=r"scalars\.pt: holds more than tensors"):
        load_plain(tmp_path / "scalars.pt", tmp_path / "scalars.pt")


def test_metadata_may_describe_tensors_only(tmp_path: Path, bait: RunsCode) -> None:
    import torch
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorProperties

    from cona.engine.box_tensor import PlainReader
    from cona.engine.unpickling import load_descriptions

    plain = {"size": torch.Size([2]), "properties": TensorProperties(dtype=torch.float32)}
    assert load_descriptions(pickle.dumps(plain)) == plain
    for hostile in (bait, BytesStorageMetadata(), print, torch.load):
        with pytest.raises(pickle.UnpicklingError, match="does not describe a tensor"):
            load_descriptions(pickle.dumps(hostile))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(bait))
    with pytest.raises(pickle.UnpicklingError):
        PlainReader(tmp_path).read_metadata()


def test_deepspeed_s_own_loads_run_no_code(tmp_path: Path, bait: RunsCode) -> None:
    import torch
    from deepspeed.runtime.fp16.loss_scaler import LossScaler

    from cona.engine.unpickling import plain_loads_of_deepspeed

    torch.save({"loss_scaler": LossScaler(1.0)}, tmp_path / "honest")
    torch.save({"loss_scaler": bait}, tmp_path / "hostile")
    before = dict(os.environ)
    with plain_loads_of_deepspeed():
        honest = torch.load(tmp_path / "honest", weights_only=False)  # as DeepSpeed asks
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "hostile", weights_only=False)
    assert isinstance(honest["loss_scaler"], LossScaler)
    assert dict(os.environ) == before
