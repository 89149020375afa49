"""Runs that are not finished, in MLflow's words; and what sums up the seeds of a policy."""

import json
from itertools import pairwise
from statistics import median

import pytest
from fake_runs import CONA, FIXED, Simulation, eval_line, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st

from cona import config
from cona.analysis.flat import Point
from cona.analysis.load import load_runs
from cona.analysis.ttp import ttp_rows
from cona.errors import RunError
from cona.lock import Lock
from cona.runlog import dumps
from cona.specs import ModelSpec, TierSpec
from cona.tracking.entries import of_policy, of_run, of_unfinished
from cona.tracking.entry import Entry
from cona.tracking.unfinished import VANISHED, unfinished_runs

MODEL = "gpt3-1.3b-proxy"


def begin_run(results, *, events=("started",), policy="cona", lines=None, torn=""):
    """Write the folder of a run as it is before its end."""
    folder = write_run(results, lines or [eval_line(0, 0.0, 500.0)], policy=policy)
    (folder / "result.json").unlink()
    tier = config.load(TierSpec, "quick").model_dump(mode="json")
    model = config.load(ModelSpec, MODEL).model_dump(mode="json")
    known = {"run_key": "k", "config_hash": "c", "policy": policy, "seed": 0}
    (folder / "run.json").write_text(json.dumps({**known, "tier": tier, "model": model}))
    found = [e if isinstance(e, dict) else {"event": e} for e in events]
    (folder / "events.jsonl").write_text("".join(dumps(e) + "\n" for e in found))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(torn)
    return folder


def ended(error: str, message: str = "why") -> dict[str, str]:
    return {"event": "ended early", "error": error, "message": message}


def states(results):
    return [(found.status, found.reason) for found in unfinished_runs(results, "quick")]


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (["started"], ("KILLED", VANISHED)),
        ([], ("KILLED", VANISHED)),
        (["started", "work repeated"], ("KILLED", VANISHED)),
        (["started", ended("Interrupted")], ("KILLED", "Interrupted: why")),
        (["started", ended("RunError")], ("FAILED", "RunError: why")),
        (["started", ended("OSError", "No space left")], ("FAILED", "OSError: No space left")),
        (["started", ended("RunError"), "resumed"], ("KILLED", VANISHED)),
    ],
)
def test_events_tell_a_killed_run_from_a_failed_one(tmp_path, events, state):
    begin_run(tmp_path, events=events)
    assert states(tmp_path) == [state]


def test_a_run_with_an_owner_is_running_whatever_happened_before(tmp_path):
    folder = begin_run(tmp_path, events=["started", ended("RunError")])
    with Lock(folder):
        assert states(tmp_path) == [("RUNNING", "")]
    assert states(tmp_path) == [("FAILED", "RunError: why")]


def test_a_finished_run_and_one_that_never_began_are_not_unfinished(tmp_path):
    write_run(tmp_path, [eval_line(0, 0.0, 500.0)])
    (tmp_path / "quick" / MODEL / "rampup" / "seed0").mkdir(parents=True)
    assert states(tmp_path) == []


def test_the_entry_has_the_curves_so_far_and_no_totals(tmp_path):
    lines = Simulation(plan=CONA, budget_s=20.0).run()
    folder = begin_run(tmp_path, events=["started"], lines=lines, torn='{"kind":"st')
    (found,) = unfinished_runs(tmp_path, "quick")
    entry = of_unfinished(found)
    assert (entry.name, entry.status) == (f"cona seed0 {MODEL}", "KILLED")
    assert (entry.tags["status"], entry.tags["reason"]) == ("killed", VANISHED)
    assert (entry.tags["kind"], entry.tags["clock"]) == ("online", "modelled")
    evals = {(p.step, p.value) for p in entry.points if p.name == "ppl"}
    assert evals == {(e["samples"], e["ppl"]) for e in lines if e["kind"] == "eval"}
    assert not [p for p in entry.points if p.name.startswith(("final_", "total_", "ttp_"))]
    assert entry.end_ms - entry.start_ms == round(lines[-1]["train_s"] * 1000)
    assert folder / "events.jsonl" in entry.files[""]


def test_a_run_that_goes_on_has_other_content(tmp_path):
    lines = Simulation(plan=CONA, budget_s=20.0).run()
    seen = []
    for count in (1, 2, len(lines)):
        begin_run(tmp_path, lines=lines[:count])
        seen += [of_unfinished(found).content for found in unfinished_runs(tmp_path, "quick")]
    begin_run(tmp_path, lines=lines, events=["started", ended("Interrupted")])
    seen += [of_unfinished(found).content for found in unfinished_runs(tmp_path, "quick")]
    assert len(set(seen)) == 4


def test_a_policy_that_is_gone_has_no_kind(tmp_path):
    begin_run(tmp_path, policy="removed-long-ago")
    (found,) = unfinished_runs(tmp_path, "quick")
    assert "kind" not in of_unfinished(found).tags


def test_a_run_json_of_other_content_is_one_sentence(tmp_path):
    folder = begin_run(tmp_path)
    (folder / "run.json").write_text('{"tier": {}}')
    with pytest.raises(RunError, match=r"run\.json: has no 'model'; delete the folder"):
        list(unfinished_runs(tmp_path, "quick"))


# --- a policy over its seeds ----------------------------------------------------------------------


def entries_of(results):
    runs = load_runs(results, "quick")
    rows = ttp_rows(runs)
    return [of_run(run, [row for row in rows if row.run is run]) for run in runs]


def test_a_policy_has_the_median_of_its_seeds_where_all_have_a_value(tmp_path):
    write_tier(tmp_path, models=(MODEL,), plans=(FIXED[3],), seeds=(0, 1, 2))
    seeds = entries_of(tmp_path)
    policy = of_policy(seeds)
    assert (policy.name, policy.status) == (f"fixed-best-gbs64 {MODEL}", "FINISHED")
    assert policy.tags["num_seeds"] == "3"
    assert policy.tags["status"] == "3 finished"
    by_seed = [{(p.name, p.step): p.value for p in seed.points} for seed in seeds]
    found = {(p.name, p.step): p.value for p in policy.points}
    assert found["ppl", 128] == median(values["ppl", 128] for values in by_seed)
    finals = [run.result["ppl"] for run in load_runs(tmp_path, "quick")]
    assert found["final_ppl", 0] == median(finals)
    names = [{p.name for p in seed.points} for seed in seeds]
    assert {p.name for p in policy.points if p.name.startswith("ttp_")} == {
        name for name in set.intersection(*names) if name.startswith("ttp_")
    }


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("FINISHED", "FINISHED"), "FINISHED"),
        (("FINISHED", "KILLED"), "KILLED"),
        (("KILLED", "FAILED"), "FAILED"),
        (("FAILED", "RUNNING", "FINISHED"), "RUNNING"),
    ],
)
def test_a_policy_is_what_its_worst_seed_is(states, status):
    assert of_policy([seed(s, i, []) for i, s in enumerate(states)]).status == status


def seed(status: str, number: int, points: list[Point]) -> Entry:
    return Entry(
        name=f"p seed{number} m",
        key=f"k{number}",
        content="c",
        status=status,
        start_ms=0,
        end_ms=1,
        tags={"status": status.lower(), "model": "m", "policy": "p"},
        points=points,
    )


values = st.lists(
    st.dictionaries(st.integers(0, 4), st.floats(-1e6, 1e6), max_size=5), min_size=1, max_size=4
)


@given(values)
def test_a_median_lies_between_its_seeds_and_needs_all_of_them(found):
    seeds = [
        seed("FINISHED", i, [Point(name="x", value=v, step=k, train_s=k) for k, v in one.items()])
        for i, one in enumerate(found)
    ]
    medians = {p.step: p.value for p in of_policy(seeds).points}
    assert medians.keys() == set.intersection(*(set(one) for one in found))
    for step, value in medians.items():
        assert min(one[step] for one in found) <= value <= max(one[step] for one in found)


def test_failed_seeds_do_not_count_in_the_medians():
    points = [[Point(name="ppl", value=v, step=0, train_s=0.0)] for v in (1.0, 2.0, 9.0)]
    seeds = [seed("FINISHED", 0, points[0]), seed("FINISHED", 1, points[1])]
    policy = of_policy([*seeds, seed("FAILED", 2, points[2])])
    assert [p.value for p in policy.points] == [1.5]
    assert policy.tags["status"] == "1 failed, 2 finished"


def test_content_follows_every_seed():
    one, other = seed("FINISHED", 0, []), seed("KILLED", 0, [])
    contents = [of_policy([one]).content, of_policy([other]).content, of_policy([one, one]).content]
    assert all(a != b for a, b in pairwise(sorted(contents)))
