"""Import into a real MLflow store (SQLite); MLflow takes seconds, so one store serves all tests."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_runs import CONA, FIXED, eval_line, write_run, write_tier

from cona.analysis.load import load_runs
from cona.errors import ConfigError, RunError
from cona.tracking import ImportReport, import_runs
from cona.tracking.entries import LEVEL, PARENT
from cona.tracking.store import COMPLETE, SUPERSEDED

MODEL = "bert-large-proxy"
IMPORT = """
import sys
from pathlib import Path
from cona.tracking import import_runs
assert "mlflow" not in sys.modules
print(import_runs(Path(sys.argv[1]), "quick", sys.argv[2]), "torch" in sys.modules)
"""


@dataclass
class Store:
    """A results root, the store it was imported into, and what the first import said."""

    results: Path
    uri: str
    client: Any
    said: str

    def runs(self, level: str = "seed") -> dict[str, Any]:
        found = self.client.get_experiment_by_name("cona/quick")
        runs = self.client.search_runs([found.experiment_id], f"tags.{LEVEL} = '{level}'")
        assert len({r.info.run_name for r in runs}) == len(runs)
        return {r.info.run_name: r for r in runs}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracking")
    results = folder / "results"
    write_tier(results, models=(MODEL,), plans=(CONA, FIXED[3]))
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, None)]
    clock = load_runs(results, "quick")[0].clock
    diverged = {"policy": "fixed-best-gbs8", "kind": "offline", "status": "diverged"}
    write_run(results, lines, model=MODEL, clock=clock, **diverged)
    (results / "quick" / MODEL / "rampup/seed0").mkdir(parents=True)  # it never began
    for kind, name in (("tables", "ttp.md"), ("figures", "ttp.png")):
        (results / "quick" / kind).mkdir()
        (results / "quick" / kind / name).write_text("made up")
    uri = f"sqlite:///{folder / 'store' / 'mlflow.db'}"
    arguments = [sys.executable, "-c", IMPORT, str(results), uri]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    from mlflow import MlflowClient

    return Store(results, uri, MlflowClient(tracking_uri=uri), done.stdout.strip())


def test_the_first_import_reports_what_it_did_without_torch(store):
    states = "Counter({'FINISHED': 2, 'FAILED': 1})"
    assert store.said == f"ImportReport(num_new=3, num_known=0, states={states}) False"


def test_runs_carry_names_parameters_tags_and_status(store):
    runs = store.runs()
    policies = ("cona", "fixed-best-gbs64", "fixed-best-gbs8")
    assert runs.keys() == {f"{policy} seed0 {MODEL}" for policy in policies}
    cona = runs[f"cona seed0 {MODEL}"]
    assert cona.info.status == "FINISHED"
    assert runs[f"fixed-best-gbs8 seed0 {MODEL}"].info.status == "FAILED"
    params = {"model": MODEL, "policy": "cona", "seed": "0", "time_budget_s": "300.0"}
    params |= {"corpus": "stdlib", "gbs_min": "8", "gbs_max": "64"}
    assert params.items() <= cona.data.params.items()
    tags = {"clock": "modelled", "time_source": "calculon+head", "belief": "calculon+head"}
    tags |= {
        "tier": "quick",
        "config_hash": "c0f1",
        "data_hash": "da7a",
        "commit": "abc123",
        "status": "finished",
        "model": MODEL,
        "policy": "cona",
        "kind": "online",
        "seed": "0",
    }
    assert tags.items() <= cona.data.tags.items()


def test_ttp_is_a_number_only_where_it_was_reached(store):
    for run in store.runs().values():
        reached = {k: v for k, v in run.data.tags.items() if k.startswith("ttp_reached/")}
        assert len(reached) > 5
        for name, word in reached.items():
            metric = name.replace("ttp_reached", "ttp_train_s")
            assert (metric in run.data.metrics) == (word == "yes")


def test_metrics_over_samples_and_over_the_clock_are_the_run_s(store):
    run = load_runs(store.results, "quick")[0]
    run_id = store.runs()[f"cona seed0 {MODEL}"].info.run_id
    history = store.client.get_metric_history(run_id, "mlm_ppl")
    expected = {e["samples"]: e["ppl"] for e in run.evals}
    assert {m.step: m.value for m in history} == expected
    clock = store.client.get_metric_history(run_id, "mlm_ppl_over_clock_ms")
    assert {m.step for m in clock} == {round(e["train_s"] * 1000) for e in run.evals}
    assert store.client.get_metric_history(run_id, "loss")


def test_artifacts_lie_beside_the_database(store):
    run = store.runs()[f"cona seed0 {MODEL}"]
    names = {a.path for a in store.client.list_artifacts(run.info.run_id)}
    files = {"run.json", "result.json", "metrics.jsonl", "events.jsonl"}
    assert names == files | {"decisions.jsonl"}
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert folder.is_relative_to(store.results.parent / "store" / "mlartifacts" / "cona" / "quick")
    log = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    run = load_runs(store.results, "quick")[0]
    assert [r for r in log if r["kind"] == "decision"] == list(run.decisions)
    assert [r for r in log if r["kind"] == "switch"] == list(run.switches)


def test_tables_and_figures_are_artifacts_of_one_run(store):
    (report,) = store.runs("report").values()
    found = {a.path for a in store.client.list_artifacts(report.info.run_id, "tables")}
    found |= {a.path for a in store.client.list_artifacts(report.info.run_id, "figures")}
    assert found == {"tables/ttp.md", "figures/ttp.png"}


def test_a_policy_s_run_is_the_parent_of_its_seeds(store):
    policies, seeds = store.runs("policy"), store.runs()
    assert policies.keys() == {name.replace(" seed0", "") for name in seeds}
    for name, seed in seeds.items():
        parent = policies[name.replace(" seed0", "")]
        assert seed.data.tags[PARENT] == parent.info.run_id
        assert seed.info.status == parent.info.status
        for key in ("model", "policy", "kind", "tier", "clock"):
            assert parent.data.tags[key] == seed.data.tags[key]
    cona = seeds[f"cona seed0 {MODEL}"].data.metrics
    assert policies[f"cona {MODEL}"].data.metrics == cona  # the median of one
    assert not policies[f"fixed-best-gbs8 {MODEL}"].data.metrics  # its only seed diverged


def test_importing_again_adds_only_what_is_missing(store):
    before = store.runs()
    half = before[f"cona seed0 {MODEL}"]
    store.client.delete_tag(half.info.run_id, COMPLETE)  # as if the import had been killed
    known = before[f"fixed-best-gbs64 seed0 {MODEL}"]
    store.client.delete_tag(known.info.run_id, "ttp_reached/398")  # as if it was a new rung
    report = import_runs(store.results, "quick", store.uri)
    states = {"FINISHED": 2, "FAILED": 1}
    assert report == ImportReport(num_new=1, num_known=2, states=states)
    after = store.runs()
    assert after.keys() == before.keys()
    assert after[half.info.run_name].info.run_id != half.info.run_id
    assert after[half.info.run_name].data.metrics == half.data.metrics
    assert after[known.info.run_name].info.run_id == known.info.run_id
    assert after[known.info.run_name].data.tags == known.data.tags
    parents = store.runs("policy")
    assert {r.data.tags[PARENT] for r in after.values()} == {
        r.info.run_id for r in parents.values()
    }
    assert import_runs(store.results, "quick", store.uri).num_new == 0
    assert {n: r.info.run_id for n, r in store.runs("policy").items()} == {
        n: r.info.run_id for n, r in parents.items()
    }


def test_a_run_with_other_content_replaces_the_imported_one(store):
    old = store.runs()[f"fixed-best-gbs8 seed0 {MODEL}"]
    clock = load_runs(store.results, "quick")[0].clock
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 300.0)]
    fixed = {"policy": "fixed-best-gbs8", "kind": "offline", "clock": clock}
    write_run(store.results, lines, model=MODEL, **fixed)
    report = import_runs(store.results, "quick", store.uri)
    assert (report.num_new, report.num_known) == (1, 2)
    new = store.runs()[f"fixed-best-gbs8 seed0 {MODEL}"]
    assert new.info.run_id != old.info.run_id
    assert (new.info.status, new.data.metrics["final_mlm_ppl"]) == ("FINISHED", 300.0)


def test_only_one_writer_at_a_time(store, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr("cona.tracking.LOCK_TIMEOUT_S", 0.0)
    with (
        FileLock(store.uri.removeprefix("sqlite:///") + ".lock"),
        pytest.raises(RunError, match="another import has held the store"),
    ):
        import_runs(store.results, "quick", store.uri)


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/x", "sqlite:///", "sqlite:mlflow.db", ""])
def test_a_store_that_is_no_database_is_refused(tmp_path, uri):
    with pytest.raises(ConfigError, match=r"valid: sqlite:///mlflow\.db"):
        import_runs(tmp_path, "quick", uri)


def test_a_store_without_its_driver_is_one_sentence(store):
    with pytest.raises(ConfigError, match="tracking URI 'mssql://x': .*; valid: sqlite:"):
        import_runs(store.results, "quick", "mssql://x")


def test_nothing_to_import_is_one_clear_sentence(tmp_path):
    with pytest.raises(RunError, match="no finished run"):
        import_runs(tmp_path, "quick", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert not (tmp_path / "mlflow.db").exists()


def test_a_run_of_other_settings_marks_the_one_before_it(store):
    name = f"fixed-best-gbs8 seed0 {MODEL}"
    before = store.runs()[name].info.run_id
    clock = load_runs(store.results, "quick")[0].clock
    lines = [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 290.0)]
    fixed = {"policy": "fixed-best-gbs8", "kind": "offline", "clock": clock}
    write_run(store.results, lines, model=MODEL, run_key="other", **fixed)
    import_runs(store.results, "quick", store.uri)
    experiment = store.client.get_experiment_by_name("cona/quick").experiment_id
    found = store.client.search_runs([experiment], f"attributes.run_name = '{name}'")
    assert {r.info.run_id == before: r.data.tags.get(SUPERSEDED) for r in found} == {
        True: "yes",
        False: None,
    }
