"""A run as flat names and numbers."""

from fake_runs import CONA, FIXED, Simulation, eval_line, write_run, write_tier

from cona.analysis.flat import MAX_POINTS, OVER_CLOCK, labels, parameters, points, ttp_labels
from cona.analysis.load import load_runs
from cona.analysis.ttp import ttp_rows


def load_one(tmp_path):
    (run,) = load_runs(tmp_path, "quick")
    return run, ttp_rows([run])


def test_perplexity_is_kept_over_samples_and_over_the_clock(tmp_path):
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 12.3456, 100.0)])
    run, rows = load_one(tmp_path)
    found = {(p.name, p.step): p.value for p in points(run, rows)}
    assert (found["ppl", 0], found["ppl", 128]) == (500.0, 100.0)
    assert OVER_CLOCK.endswith("_ms")
    assert found["ppl" + OVER_CLOCK, 12346] == 100.0
    assert found["final_ppl", 128] == 100.0
    assert found["ttp_train_s/100", 128] == 12.3456


def test_only_reached_targets_have_a_number_and_all_have_a_label(tmp_path):
    write_tier(tmp_path, models=("m",), plans=(CONA, FIXED[3]))
    runs = load_runs(tmp_path, "quick")
    rows = [r for r in ttp_rows(runs) if r.run is runs[1]]
    reached = ttp_labels(rows)
    assert set(reached.values()) == {"yes", "no"}
    names = {p.name for p in points(runs[1], rows)}
    for name, word in reached.items():
        target = name.removeprefix("ttp_reached/")
        assert (f"ttp_train_s/{target}" in names) == (word == "yes")


def test_what_does_not_exist_is_left_out(tmp_path):
    write_run(tmp_path, Simulation(plan=CONA, budget_s=20.0).run())
    run, rows = load_one(tmp_path)
    unbounded = [s["samples"] for s in run.steps if s["gns_high"] is None]
    assert unbounded
    found = {(p.name, p.step) for p in points(run, rows)}
    assert not found & {("gns_high", samples) for samples in unbounded}
    assert ("gns_high", run.steps[-1]["samples"]) in found


def test_iterations_are_thinned_and_evaluations_are_not(tmp_path):
    write_run(tmp_path, Simulation(plan=FIXED[0], budget_s=450.0).run())
    run, rows = load_one(tmp_path)
    assert len(run.steps) == 450
    found = points(run, rows)
    assert sum(p.name == "loss" for p in found) == 150 <= MAX_POINTS
    assert sum(p.name == "ppl" for p in found) == len({e["samples"] for e in run.evals})
    assert len({(p.name, p.step) for p in found}) == len(found)


def test_parameters_and_labels_are_text(tmp_path):
    write_run(tmp_path, [eval_line(0, 0.0, 500.0)], seed=4)
    run, _ = load_one(tmp_path)
    assert parameters(run)["seed"] == "4"
    assert parameters(run)["priced_as"] == "gpt3-1.3b"
    chosen = {"corpus": "stdlib", "gbs_min": "8", "gbs_max": "64"}
    assert chosen.items() <= parameters(run).items()
    wanted = {"clock": "modelled", "commit": "abc123", "config_hash": "c0f1", "data_hash": "da7a"}
    assert wanted.items() <= labels(run).items()


def test_parameters_that_are_not_recorded_are_left_out(tmp_path):
    path = write_run(tmp_path, [eval_line(0, 0.0, 500.0)])
    (path / "run.json").unlink()
    run, _ = load_one(tmp_path)
    assert run.corpus is None
    assert not {"corpus", "gbs_min", "gbs_max"} & set(parameters(run))
