"""Reading run directories."""

import json
import re
import shlex

import pytest
from click.testing import CliRunner
from fake_runs import CONA, FIXED, clock, eval_line, write_run, write_tier

from cona import cli
from cona.analysis.groups import by_policy, order
from cona.analysis.load import load_runs, run_command
from cona.errors import RunError

LINES = [eval_line(0, 0.0, 500.0), eval_line(128, 10.0, 100.0, switch_s=1.5)]


def test_a_run_is_read_as_written(tmp_path):
    write_run(tmp_path, LINES, policy="cona", seed=3, clock=clock(switch_cost="restart"))
    (run,) = load_runs(tmp_path, "quick")
    assert (run.name, run.kind, run.metric) == ("gpt3-1.3b-proxy/cona/seed3", "online", "ppl")
    assert run.clock["switch_cost"] == "restart"
    assert run.info["commit"] == "abc123"
    curve = run.curve
    assert curve.samples.tolist() == [0, 128]
    assert curve.recharged_s("live").tolist() == [0.0, 10.0]
    assert curve.recharged_s("restart").tolist() == [0.0, 8.5 + 38.0]
    assert curve.recharged_s("zero").tolist() == [0.0, 8.5]


def test_an_evaluation_without_perplexity_is_left_out_not_turned_into_a_number(tmp_path):
    write_run(tmp_path, [*LINES, eval_line(256, 20.0, None)], status="diverged")
    (run,) = load_runs(tmp_path, "quick")
    assert len(run.evals) == 3
    assert run.curve.ppl.tolist() == [500.0, 100.0]


def test_unfinished_runs_and_other_folders_are_not_read(tmp_path):
    write_run(tmp_path, LINES, policy="cona")
    (write_run(tmp_path, LINES, policy="rampup") / "result.json").unlink()
    (tmp_path / "quick/gpt3-1.3b-proxy/_trajectories/00ff").mkdir(parents=True)
    assert [r.policy for r in load_runs(tmp_path, "quick")] == ["cona"]


def test_no_finished_run_is_one_clear_sentence(tmp_path):
    command = "cona run --model gpt3-1.3b-proxy --policy cona --tier quick --out"
    with pytest.raises(RunError, match=rf"no finished run; start one with `{command} {tmp_path}`$"):
        load_runs(tmp_path, "quick")
    with pytest.raises(RunError, match="--tier paper@tiny --out"):
        load_runs(tmp_path, "paper-tiny")
    with pytest.raises(RunError, match="naming the YAML file of this tier"):
        load_runs(tmp_path, "mine")


def test_the_command_that_is_proposed_works_as_it_stands(tmp_path):
    """Everything but the training: options, names and the folder are valid."""
    command = shlex.split(run_command(tmp_path / "a b", "quick").strip("`"))
    done = CliRunner().invoke(cli.main, [*command[1:], "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path}/a b/quick/")


def test_damaged_metrics_are_refused(tmp_path):
    path = write_run(tmp_path, LINES)
    (path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"checksum .* is not the one in result\.json"):
        load_runs(tmp_path, "quick")


def test_missing_metrics_and_foreign_schema_are_refused(tmp_path):
    path = write_run(tmp_path, LINES)
    (path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="No such file"):
        load_runs(tmp_path, "quick")
    (path / "result.json").write_text(json.dumps({"schema": 2}))
    with pytest.raises(RunError, match="schema 2 is not 1"):
        load_runs(tmp_path, "quick")
    (path / "result.json").write_text("{")
    with pytest.raises(RunError, match="not JSON"):
        load_runs(tmp_path, "quick")


@pytest.mark.parametrize(
    ("key", "value"),
    [("clock", clock(time_source="table")), ("time_budget_s", 7.0), ("data_hash", "other")],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, key, value):
    write_run(tmp_path, LINES, policy="cona")
    write_run(tmp_path, LINES, policy="rampup", kind="schedule", **{key: value})
    with pytest.raises(RunError, match=re.escape(f"rampup/seed0 has {key}")):
        load_runs(tmp_path, "quick")


def engine(kind: str, precision: str = "fp32") -> dict[str, str]:
    return {"kind": kind, "precision": precision, "switch_path": f"of {kind}"}


def test_a_policy_may_bring_an_engine_but_a_tier_has_one(tmp_path):
    write_run(tmp_path, LINES, policy="cona", clock=clock(engine=engine("megatron")))
    own = {"policy": "cona-paper-engine=deepspeed", "clock": clock(engine=engine("deepspeed"))}
    write_run(tmp_path, LINES, **own)
    assert len(load_runs(tmp_path, "quick")) == 2
    other = clock(engine=engine("deepspeed"))
    write_run(tmp_path, LINES, policy="rampup", kind="schedule", clock=other)
    with pytest.raises(RunError, match="rampup/seed0 has clock"):
        load_runs(tmp_path, "quick")


def test_an_engine_of_its_own_has_the_tiers_precision(tmp_path):
    write_run(tmp_path, LINES, policy="cona", clock=clock(engine=engine("megatron")))
    own = {"policy": "cona-engine=deepspeed", "clock": clock(engine=engine("deepspeed", "bf16"))}
    write_run(tmp_path, LINES, **own)
    with pytest.raises(RunError, match="deepspeed/seed0 has clock"):
        load_runs(tmp_path, "quick")


def test_models_may_differ_in_budget(tmp_path):
    write_run(tmp_path, LINES, model="a")
    write_run(tmp_path, LINES, model="b", time_budget_s=7.0)
    assert [r.model for r in load_runs(tmp_path, "quick")] == ["a", "b"]


def test_policies_come_in_one_order_with_batch_sizes_by_size(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(*reversed(FIXED), CONA), seeds=(1, 0))
    runs = load_runs(tmp_path, "quick")
    fixed = [f"fixed-best-gbs{g}" for g in (8, 16, 32, 64)]
    assert list(by_policy(runs)) == ["cona", *fixed]
    assert [r.seed for r in runs[:2]] == [0, 1]
    assert order("x", "unheard-of") > order("greedy-oracle", "bound")
